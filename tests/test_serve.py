"""How the process that looks after the others is told to end."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.processes import ends_with_parent
from app.serve import HEALTHY_SECONDS, Child, Stop, look_after, stopping_on_signals


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


@contextmanager
def api_whose_port_is_in_use() -> Iterator[Child]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        nowhere = {"SHIFTWATCH_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
        api = Child(["api", "--port", port], {**os.environ, **nowhere})
        try:
            yield api
        finally:
            api.stop()


def looked_after_for(seconds: float, child: Child) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        child.look_after()
        time.sleep(0.05)


def test_a_port_in_use_ends_it_however_long_it_took_to_find_out() -> None:
    with api_whose_port_is_in_use() as api:
        # As on a machine so busy that this much of its life went by before the API was loaded.
        api.began -= HEALTHY_SECONDS

        with pytest.raises(SystemExit) as ended:
            looked_after_for(60.0, api)

    assert ended.value.code == 3
    assert api.has_lived


def test_an_api_that_was_well_once_is_started_again() -> None:
    with api_whose_port_is_in_use() as api:
        api.is_first, api.has_lived = False, True
        first = api.process

        first.wait(60)
        looked_after_for(2.0, api)

        assert api.process is not first
