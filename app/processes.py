"""Processes that must not outlive the one that started them."""

import ctypes
import os
import signal
from collections.abc import Callable

PR_SET_PDEATHSIG = 1

# Linux only: elsewhere a killed parent leaves its children behind, and nothing can be done here.
_prctl = getattr(ctypes.CDLL(None), "prctl", None)


def ends_with_parent(number: signal.Signals) -> Callable[[], None]:
    """For `preexec_fn`: the child gets this signal when the thread that starts it ends.

    It runs in the child after a change of user, which would undo it.
    """
    parent = os.getpid()

    def tie() -> None:
        # A parent that ignores it, because it is about to end, must not have children that do.
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        if _prctl is not None:
            _prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number))
        # The parent may have died before we asked to be told.
        if os.getppid() != parent:
            os._exit(1)

    return tie
