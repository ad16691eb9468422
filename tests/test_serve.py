"""How the process that looks after the others is told to end."""

import os
import signal
import subprocess

import pytest

from app.processes import ends_with_parent
from app.serve import Stop, look_after, stopping_on_signals


class Dying:
    """A finalizer, in which a signal comes: what the handler raises there is thrown away."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        # The handler runs before this function ends.
        sum(range(10))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("once", [False, True])
def test_a_signal_whose_exception_is_thrown_away_is_seen_all_the_same(once: bool) -> None:
    reached = []

    with stopping_on_signals(once=once) as asked:
        Dying()
        reached.append("the rest of the block")
        look_after([], None, until=asked.is_set)
        reached.append("its end")

    assert reached == ["the rest of the block", "its end"]


def test_a_signal_unwinds_the_block() -> None:
    reached = []

    with stopping_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        reached.append("the rest of the block")

    assert reached == []


def test_no_other_signal_disturbs_the_unwinding() -> None:
    unwound = []

    with stopping_on_signals(once=True):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except Stop:
            os.kill(os.getpid(), signal.SIGTERM)
            unwound.append("to the end")
            raise

    assert unwound == ["to the end"]


def test_a_child_does_not_ignore_what_its_parent_ignores() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            ["sleep", "60"], preexec_fn=ends_with_parent(signal.SIGTERM), start_new_session=True
        )
    finally:
        signal.signal(signal.SIGTERM, before)

    child.terminate()

    assert child.wait(10) == -signal.SIGTERM
