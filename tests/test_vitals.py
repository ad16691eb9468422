"""The worker's own window: counted, alive, or what ails it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from app import deliver, vitals, worker
from app.config import Settings
from app.evaluate.due import Worker
from app.storage.db import Database
from app.worker import Loops
from tests.journeys.processes import free_port, until


@contextmanager
def serving(ailment: Callable[[], str | None], host: str = "127.0.0.1") -> Iterator[str]:
    port = free_port()
    stop = vitals.serve(host, port, ailment)
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        stop()


def test_it_says_what_the_process_counts() -> None:
    with serving(lambda: None) as url:
        answer = httpx.get(f"{url}/metrics")

    assert answer.status_code == 200
    assert "shiftwatch_evaluations_total" in answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_it_lives_until_something_ails_it() -> None:
    ailments: list[str | None] = [None]
    with serving(lambda: ailments[-1]) as url:
        well = httpx.get(f"{url}/livez")
        ailments.append("stuck: evaluate")
        ill = httpx.get(f"{url}/livez")

    assert (well.status_code, well.text) == (200, "ok\n")
    assert (ill.status_code, ill.text) == (503, "stuck: evaluate\n")


def test_nothing_else_is_there() -> None:
    with serving(lambda: None) as url:
        assert httpx.get(f"{url}/v1/models").status_code == 404


def test_it_listens_on_other_kinds_of_addresses_too() -> None:
    try:
        with serving(lambda: None, "::1") as url:
            assert httpx.get(f"{url}/livez").status_code == 200
    except OSError:
        pytest.skip("this machine has no IPv6")


@pytest.fixture
def loops(database: Database) -> Iterator[Loops]:
    found = Loops(Settings(), database)
    yield found
    found.stop()


def test_a_worker_at_work_is_well(loops: Loops) -> None:
    assert loops.ailment() is None

    loops.start()
    time.sleep(0.2)

    assert loops.ailment() is None


def test_a_worker_that_is_stuck_in_a_step_says_so(
    loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STUCK_SECONDS", 0.05)
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.01)
    go_on = threading.Event()
    monkeypatch.setattr(Worker, "evaluate_next", lambda *_: go_on.wait(30))

    loops.start()
    try:
        # A busy machine may make an ordinary step of another thread as slow, but not for good.
        until(lambda: loops.ailment() == "stuck: evaluate", seconds=20)
    finally:
        go_on.set()


def test_all_threads_that_are_stuck_are_named(
    loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STUCK_SECONDS", 0.05)
    go_on = threading.Event()
    monkeypatch.setattr(Worker, "evaluate_next", lambda *_: go_on.wait(30))
    monkeypatch.setattr(deliver, "deliver_next", lambda *_: go_on.wait(30))

    everyone = "stuck: deliver-0, deliver-1, deliver-2, deliver-3, evaluate"
    loops.start()
    try:
        until(lambda: loops.ailment() == everyone, seconds=20)
    finally:
        go_on.set()


def test_an_address_that_is_taken_is_named_with_its_setting() -> None:
    with serving(lambda: None) as url:
        port = int(url.rpartition(":")[2])

        with pytest.raises(vitals.CannotListen, match=f"SHIFTWATCH_WORKER_PORT.*127.0.0.1:{port}"):
            vitals.serve("127.0.0.1", port, lambda: None)
