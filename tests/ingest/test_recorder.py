"""The recorder with a real database behind it, and a database that misbehaves on demand."""

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import tracing
from app.config import Settings
from app.domain.model import Model
from app.errors import Unavailable
from app.ingest import recorder
from app.ingest.contributions import Contribution, Contributions, Fate, Settled
from app.ingest.record import KeyReused, Outcome, Receipt, Stale, Submission, record
from app.ingest.recorder import OutcomeUnknown, Recorder
from app.ingest.reduce import Reduced
from app.stats.moments import Sums
from app.storage import models, panes, schema
from app.storage.db import Connection, Database, Outage
from app.storage.embedded import Cluster, Embedded
from app.storage.panes import PaneKey
from tests.collector import Collector
from tests.conftest import Written
from tests.factories import NOW, VERSION, settings


@pytest.fixture
def model(database: Database) -> Model:
    with database.begin() as conn:
        found, _ = models.put(conn, "fraud", settings(), NOW)
        return found


def submission(
    model: Model, *counts: int, key: str | None = None, fingerprint: bytes = b""
) -> Submission:
    sums = Sums(np.array(counts or (1, 0, 0)))
    place = PaneKey(model.id, VERSION, NOW.replace(second=0), "hard")
    return Submission(Reduced(model, VERSION, {place: sums}, sums.n), key, fingerprint)


def counted(database: Database, model: Model) -> list[int]:
    with database.begin() as conn:
        found = panes.between(conn, model.id, NOW.replace(hour=0), NOW.replace(hour=23))
    return found[0].counts.tolist() if found else [0, 0, 0]


def run(recorder: Recorder, work: Callable[[Recorder], Awaitable[Any]]) -> Any:
    """Let the recorder live while `work` is done on an event loop."""

    async def live() -> Any:
        recorder.start()
        try:
            return await work(recorder)
        finally:
            await recorder.stop()

    return asyncio.run(live())


def together(*submissions: Submission) -> Callable[[Recorder], Awaitable[list[Any]]]:
    """Send all at once; outcomes and errors alike are returned."""

    async def send(recorder: Recorder) -> list[Any]:
        sending = (recorder.record(one) for one in submissions)
        return await asyncio.gather(*sending, return_exceptions=True)

    return send


def recorder_of(database: Database, **options: Any) -> Recorder:
    return Recorder(database, clock=lambda: NOW, **options)


class Watching(Database):
    """Counts transactions; can lose the answer to the next commit, and stay away after that."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.url, pool_size=1)
        self.commits = 0
        self.lose = False
        self.stay_away = False
        self.away = False

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        if self.away:
            raise Outage("still away")
        with super().begin() as conn:
            yield conn
        self.commits += 1
        if self.lose:
            self.lose, self.away = False, self.stay_away
            raise Outage("the answer to the commit was lost")


@pytest.fixture
def watching(database: Database) -> Iterator[Watching]:
    found = Watching(database)
    yield found
    found.close()


def test_requests_that_come_together_share_a_commit(watching: Watching, model: Model) -> None:
    batches = [submission(model, 1, 2, 3) for _ in range(50)]
    recorder = recorder_of(watching)

    outcomes = run(recorder, together(*batches))

    assert outcomes == [Receipt(VERSION, 6, 0, 0)] * 50
    assert counted(watching, model) == [50, 100, 150]
    # One to make the pane's partition, one for all fifty batches; ours, to count, came later.
    assert watching.commits == 3


async def later(recorder: Recorder, one: Submission, turns: int) -> Outcome:
    for _ in range(turns):
        await asyncio.sleep(0)
    return await recorder.record(one)


@pytest.mark.parametrize(("quiet_turns", "together"), [(recorder.QUIET_TURNS, True), (1, False)])
def test_requests_that_the_next_turns_of_the_event_loop_bring_come_along(
    database: Database,
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    quiet_turns: int,
    together: bool,
) -> None:
    monkeypatch.setattr(recorder, "QUIET_TURNS", quiet_turns)
    groups: list[int] = []

    class Noting(Recorder):
        def _settle(self, group: Any, *, first_try: bool = True) -> list[Any]:
            groups.append(len(group))
            return super()._settle(group, first_try=first_try)

    async def send(own: Recorder) -> list[Outcome]:
        # What a turn reads is reduced in the next one: every second turn brings a request.
        sending = (later(own, submission(model), 2 * number) for number in range(5))
        return await asyncio.gather(*sending)

    outcomes = run(Noting(database, clock=lambda: NOW), send)

    assert outcomes == [Receipt(VERSION, 1, 0, 0)] * 5
    assert sum(groups) == 5
    assert (len(groups) == 1) is together


def test_the_first_request_does_not_wait_for_requests_without_end(
    database: Database, model: Model
) -> None:
    async def send(own: Recorder) -> Outcome:
        first = asyncio.ensure_future(own.record(submission(model)))
        others = []
        # A turn each, and no turn without one.
        while not first.done():
            others.append(asyncio.ensure_future(own.record(submission(model))))
            await asyncio.sleep(0)
        await asyncio.gather(*others)
        return await first

    patient = recorder_of(database, capacity=1_000_000)
    outcome = run(patient, lambda own: asyncio.wait_for(send(own), timeout=20))

    assert outcome == Receipt(VERSION, 1, 0, 0)


def test_a_key_counts_once_even_within_one_transaction(database: Database, model: Model) -> None:
    batches = [submission(model, 1, 0, 0, key="a") for _ in range(3)]

    outcomes = run(recorder_of(database), together(*batches))

    assert [outcome.duplicate for outcome in outcomes] == [False, True, True]
    assert counted(database, model) == [1, 0, 0]


def test_a_key_with_other_content_is_refused_even_within_one_transaction(
    database: Database, model: Model
) -> None:
    first = submission(model, 1, 0, 0, key="a", fingerprint=b"one")
    other = submission(model, 0, 1, 0, key="a", fingerprint=b"two")

    outcomes = run(recorder_of(database), together(first, other))

    assert outcomes == [Receipt(VERSION, 1, 0, 0), KeyReused()]
    assert counted(database, model) == [1, 0, 0]


def test_a_batch_reduced_by_an_outdated_model_is_not_counted(
    database: Database, model: Model
) -> None:
    outdated = replace(model, revision=model.revision - 1)
    forgotten = replace(model, id=model.id + 1000)

    outcomes = run(
        recorder_of(database),
        together(submission(outdated), submission(model), submission(forgotten)),
    )

    assert outcomes == [Stale(), Receipt(VERSION, 1, 0, 0), Stale()]
    assert counted(database, model) == [1, 0, 0]


def test_a_poisoned_batch_fails_alone(database: Database, model: Model) -> None:
    poisoned = submission(model, 1, 2)  # two labels where the pane has three

    outcomes = run(recorder_of(database), together(submission(model), poisoned, submission(model)))

    assert [type(outcome) for outcome in outcomes[::2]] == [Receipt, Receipt]
    assert isinstance(outcomes[1], Exception)
    assert counted(database, model) == [2, 0, 0]


def test_a_line_of_the_recorder_says_how_many_batches_it_is_about_and_of_which_models(
    database: Database, model: Model, written: Written
) -> None:
    poisoned = submission(model, 1, 2)

    run(recorder_of(database), together(submission(model), poisoned, submission(model)))

    (group,), (batch,) = written.of("group failed, trying one by one"), written.of("batch failed")
    assert (group["batches"], group["models"]) == (3, ["fraud"])
    assert (batch["batches"], batch["models"]) == (1, ["fraud"])
    # The traceback is told of with the request, which has an id.
    assert "exception" not in batch


@pytest.mark.parametrize("traced", [True, False])
def test_a_commit_is_of_the_trace_of_its_last_batch_and_linked_to_the_others(
    database: Database, model: Model, traced: bool
) -> None:
    traces = [f"00-{number:032x}-{number:016x}-01" if traced else None for number in (1, 2, 3)]
    reduced = submission(model).reduced
    batches = [Submission(reduced, trace=trace) for trace in [*traces, None]]

    with Collector() as collector:
        tracing.start(Settings(otlp_endpoint=collector.url), "api")
        run(recorder_of(database), together(*batches))
        tracing.stop()

    found = [(one.trace, one.links) for one in collector.spans if one.name == "commit"]
    expected = (f"{3:032x}", (f"{2:032x}", f"{1:032x}"))
    assert found == ([expected] if traced else [])


def losing_the_second_answer(
    watching: Watching, model: Model
) -> Callable[[Recorder], Awaitable[Outcome]]:
    async def send(recorder: Recorder) -> Outcome:
        await recorder.record(submission(model))
        watching.lose = True
        return await recorder.record(submission(model))

    return send


def test_a_lost_answer_to_a_commit_is_looked_up_instead_of_counting_again(
    watching: Watching, model: Model
) -> None:
    outcome = run(recorder_of(watching), losing_the_second_answer(watching, model))

    assert outcome == Receipt(VERSION, 1, 0, 0)
    assert counted(watching, model) == [2, 0, 0]


def test_after_a_lost_answer_a_source_is_told_what_became_of_its_panes_and_not_of_a_repeat(
    watching: Watching, model: Model
) -> None:
    pane = Contribution(VERSION, NOW.replace(second=0), 1, {"hard": Sums(np.array([5, 0, 0]))})
    said = Contributions(model, "edge-7", VERSION, [pane], most_sources=1)

    async def send(recorder: Recorder) -> list[Outcome]:
        await recorder.record(submission(model))
        watching.lose = True
        return [await recorder.record(said), await recorder.record(said)]

    outcomes = run(recorder_of(watching), send)

    assert outcomes == [Settled((Fate.STORED,), (5,)), Settled((Fate.DUPLICATE,), (0,))]
    assert counted(watching, model) == [6, 0, 0]


def test_without_looking_it_up_the_batch_would_count_twice(
    watching: Watching, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "_took_place", lambda *_: False)

    run(recorder_of(watching), losing_the_second_answer(watching, model))

    assert counted(watching, model) == [3, 0, 0]


def test_when_nobody_can_say_what_became_of_a_commit_the_caller_is_told_so(
    watching: Watching, model: Model
) -> None:
    watching.stay_away = True

    with pytest.raises(OutcomeUnknown, match="Idempotency-Key"):
        run(recorder_of(watching, patience_seconds=0.3), losing_the_second_answer(watching, model))


def test_a_database_that_is_away_is_waited_for(
    database: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = [Outage("away")] * 3
    begin = database.begin

    @contextmanager
    def flaky() -> Iterator[Connection]:
        if away:
            raise away.pop()
        with begin() as conn:
            yield conn

    monkeypatch.setattr(database, "begin", flaky)

    outcomes = run(recorder_of(database), together(submission(model)))

    assert outcomes == [Receipt(VERSION, 1, 0, 0)]


def test_patience_with_a_database_that_is_away_ends(model: Model) -> None:
    nowhere = Database("postgresql+psycopg://nobody@/nowhere?host=/nonexistent")

    (outcome,) = run(recorder_of(nowhere, patience_seconds=0.2), together(submission(model)))

    assert isinstance(outcome, Unavailable)
    assert outcome.retry_after_seconds >= 1


def test_a_transaction_that_a_crash_undid_is_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is killed between the last statement and the commit, and others go on first.

    They get the transaction ids that were not written out, so that of ours means nothing.
    """
    killed, recovered = threading.Event(), threading.Event()
    with Embedded(tmp_path / "data") as embedded, closing(embedded.start()) as database:
        schema.upgrade(database)
        with database.begin() as conn:
            model, _ = models.put(conn, "fraud", settings(), NOW)

        def record_and_be_killed(*arguments: Any) -> list[Outcome]:
            outcomes = record(*arguments)
            if not killed.is_set():
                os.kill(embedded.start().pid, signal.SIGKILL)
                killed.set()
                recovered.wait(30)
            return outcomes

        async def recover_meanwhile(recorder: Recorder) -> Outcome:
            sending = asyncio.create_task(recorder.record(submission(model, 1, 2, 3)))
            while not killed.is_set():
                await asyncio.sleep(0.01)
            while embedded.alive():
                await asyncio.sleep(0.01)
            embedded.recover()
            for number in range(20):
                with database.begin() as conn:
                    models.put(conn, "other", settings(keep_ids=number % 2 == 0), NOW)
            recovered.set()
            return await sending

        monkeypatch.setattr("app.ingest.recorder.record", record_and_be_killed)
        with closing(embedded.start()) as writer:
            outcome = run(recorder_of(writer), recover_meanwhile)

        assert outcome == Receipt(VERSION, 6, 0, 0)
        assert counted(database, model) == [1, 2, 3]


@contextmanager
def closing(cluster: Cluster) -> Iterator[Database]:
    database = Database(cluster.url)
    yield database
    database.close()


def test_a_writer_that_died_refuses_instead_of_keeping_callers_waiting(
    database: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "_run", lambda _: None)

    async def send_after_death(recorder: Recorder) -> Outcome:
        recorder._thread.join()
        return await recorder.record(submission(model))

    with pytest.raises(Unavailable):
        run(recorder_of(database), send_after_death)


def test_a_full_queue_refuses_at_once(database: Database, model: Model) -> None:
    batches = [submission(model) for _ in range(5)]

    outcomes = run(recorder_of(database, capacity=3), together(*batches))

    assert [type(outcome) for outcome in outcomes] == [Receipt] * 3 + [Unavailable] * 2
    assert counted(database, model) == [3, 0, 0]


def test_sums_that_fill_the_memory_refuse_too(
    database: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ingest.recorder.MOST_WAITING_BYTES", 60)
    batches = [submission(model) for _ in range(4)]  # of 24 bytes each

    outcomes = run(recorder_of(database), together(*batches))
    later = run(recorder_of(database), together(submission(model)))

    assert [type(outcome) for outcome in outcomes] == [Receipt] * 2 + [Unavailable] * 2
    assert later == [Receipt(VERSION, 1, 0, 0)]


def test_stopping_finishes_what_was_taken_and_refuses_the_rest(
    database: Database, model: Model
) -> None:
    async def stop_while_sending(recorder: Recorder) -> list[Any]:
        taken = [asyncio.create_task(recorder.record(submission(model))) for _ in range(10)]
        await asyncio.sleep(0)
        await recorder.stop()
        with pytest.raises(Unavailable):
            await recorder.record(submission(model))
        return await asyncio.gather(*taken)

    outcomes = run(recorder_of(database), stop_while_sending)

    assert outcomes == [Receipt(VERSION, 1, 0, 0)] * 10
    assert counted(database, model) == [10, 0, 0]


def test_a_recorder_that_has_not_started_or_has_stopped_is_not_alive(database: Database) -> None:
    async def look(found: Recorder) -> bool:
        return found.alive

    recorder = recorder_of(database)

    before = recorder.alive
    during = run(recorder, look)

    assert (before, during, recorder.alive) == (False, True, False)


def test_a_recorder_that_is_stuck_is_not_alive(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(found: Recorder) -> bool:
        found._busy_since = -1e9
        return found.alive

    assert not run(recorder_of(database), look)


def test_a_partition_that_was_dropped_is_made_again(database: Database, model: Model) -> None:
    async def drop_between(recorder: Recorder) -> Outcome:
        await recorder.record(submission(model))
        with database.begin() as conn:
            conn.exec_driver_sql("DROP TABLE pane_2026_11_01")
        return await recorder.record(submission(model))

    outcome = run(recorder_of(database), drop_between)

    assert outcome == Receipt(VERSION, 1, 0, 0)
    assert counted(database, model) == [1, 0, 0]
