"""What the allocator is told has the effects that it is told for; where there is glibc."""

import platform
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="there is nothing to tell another allocator"
)

# Three megabytes are free at the end of the heap after each turn, as after a body of one.
FAULTS = """
import resource
for turn in range(60):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [bytearray(b"x" * 1_000_000) for _ in range(3)]
    del parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

# Two threads that hold memory at once; malloc tells of its heaps on the standard output.
HEAPS = """
import ctypes, threading
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
meet = threading.Barrier(4)
def hold():
    libc.malloc(100_000)
    meet.wait()
threads = [threading.Thread(target=hold) for _ in range(4)]
for one in threads: one.start()
for one in threads: one.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def told(script: str, *, settled: bool) -> str:
    before = "from app import allocator; allocator.settle()\n" if settled else ""
    command = [sys.executable, "-c", before + script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_memory_that_is_needed_again_at_once_is_not_given_back() -> None:
    assert int(told(FAULTS, settled=True)) < 1_000
    assert int(told(FAULTS, settled=False)) > 10_000


def test_threads_share_one_heap() -> None:
    heaps = [
        len(re.findall(r"<heap nr=", told(HEAPS, settled=settled))) for settled in (True, False)
    ]

    assert heaps[0] == 1 < heaps[1]
