"""How this process asks the system for memory and gives it back; with glibc, and nowhere else."""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8

MEGABYTE = 1024 * 1024
# Larger pieces come from the system and go back to it one by one, so that they leave no holes.
LARGE_BYTES = 4 * MEGABYTE
# What is free at the end of the heap stays up to here. By default it goes back after each body of a
# megabyte, and has to be asked for, page by page, for the next.
SPARE_BYTES = 32 * MEGABYTE
# By default each of dozens of threads gets a heap of its own, and what is free in one is of no use
# to the others. Our threads take turns anyway: they share one interpreter.
HEAPS = 1


def settle() -> None:
    """Before threads are started: one heap, and no asking again and again for the same memory.

    Whoever has told glibc something himself is not contradicted.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, SPARE_BYTES)
        mallopt(M_ARENA_MAX, HEAPS)
