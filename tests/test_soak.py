"""What a soak makes of its notes. The soak itself is `python -m bench.soak`."""

from collections import Counter
from itertools import pairwise

import pytest

from bench.soak import books
from bench.soak.books import Answered, Gap, Kind, Ledger, Probe, Recovery


def ledger(acknowledged: int, unknown: int = 0) -> Ledger:
    found = Ledger()
    found.acknowledge("m", Counter(a=acknowledged))
    found.lose_sight("m", Counter(a=unknown))
    return found


@pytest.mark.parametrize("stored", [10, 11, 13])
def test_what_is_stored_lies_between_what_is_sure_and_what_may_be(stored: int) -> None:
    assert books.gaps(ledger(10, unknown=3), "m", {"a": stored}) == []


@pytest.mark.parametrize("stored", [9, 14])
def test_less_than_acknowledged_or_more_than_sent_is_a_gap(stored: int) -> None:
    assert books.gaps(ledger(10, unknown=3), "m", {"a": stored}) == [Gap("m", "a", 10, 13, stored)]


def test_with_keys_one_prediction_too_many_is_a_gap() -> None:
    assert books.gaps(ledger(10), "m", {"a": 11}) == [Gap("m", "a", 10, 10, 11)]


def test_labels_that_are_lost_or_were_never_sent_are_gaps() -> None:
    found = books.gaps(ledger(10), "m", {"b": 2})

    assert [(one.label, one.stored) for one in found] == [("a", 0), ("b", 2)]


def test_batches_of_a_model_add_up_and_models_are_kept_apart() -> None:
    found = ledger(10)
    found.acknowledge("m", Counter(a=5))
    found.acknowledge("other", Counter(a=7))

    assert books.gaps(found, "m", {"a": 15}) == books.gaps(found, "other", {"a": 7}) == []


TOLD = [(1, "fires"), (2, "fires too"), (1, "is over")]


def test_alarms_may_be_told_in_any_order_but_each_in_its_own() -> None:
    assert books.untold(TOLD, [TOLD[1], TOLD[0], TOLD[2]]) == []
    assert books.untold(TOLD, TOLD[::-1]) == ["alarm 1 came in another order"]


def test_a_notice_that_never_came_is_missed() -> None:
    assert books.untold(TOLD, TOLD[:2]) == ["is over never came"]


# How long things took.


def answered(*times: float, replica: str = "one") -> list[Answered]:
    return [Answered(time - 0.1, time, replica) for time in times]


def test_a_pause_is_the_longest_time_between_answers_after_the_fault() -> None:
    answers = answered(1.0, 9.0, 10.2, 10.5, 14.5, 15.0, 40.0)

    assert books.longest_pause(answers, at=10.0, until=20.0) == 4.0


def test_the_answers_of_other_replicas_do_not_end_a_replicas_pause() -> None:
    answers = answered(10.5, 11.0) + answered(13.0, replica="two")

    assert books.longest_pause(answers, 10.0, 20.0) == 2.0
    assert books.longest_pause(answers, 10.0, 20.0, "two") == 3.0


def test_without_any_answer_there_is_no_end_of_the_pause() -> None:
    assert books.longest_pause(answered(9.0), 10.0, 20.0) is None


def probes(what: str, wells: str) -> list[Probe]:
    return [Probe(10.0 + i, what, one == "+") for i, one in enumerate(wells)]


@pytest.mark.parametrize(
    ("wells", "expected"),
    [("+++", 0.0), ("--+", 2.0), ("+-+", 2.0), ("-+-++", 3.0), ("+--", None)],
)
def test_well_again_is_when_it_stays_well(wells: str, expected: float | None) -> None:
    assert books.well_again(probes("api", wells), at=10.0, until=20.0) == expected


def test_all_is_well_when_the_last_one_is() -> None:
    some = probes("one", "-+++") + probes("two", "---+")

    assert books.well_again(some, 10.0, 20.0) == 3.0
    assert books.well_again(some, 10.0, 13.0) is None


def test_all_is_fresh_when_every_model_was_evaluated_after_the_fault() -> None:
    seen = [(11.0, "a", 9.9), (12.0, "a", 11.8), (13.0, "b", 9.0), (15.0, "b", 14.0)]

    assert books.fresh_again(seen, ["a", "b"], 10.0) == 5.0
    assert books.fresh_again(seen[:3], ["a", "b"], 10.0) is None


def test_an_answer_counts_as_of_a_fault_if_they_overlap() -> None:
    some = [Answered(1, 2, ""), Answered(1, 4, ""), Answered(4, 5, ""), Answered(7, 8, "")]

    assert books.during(some, [(3.0, 6.0)]) == [False, True, True, False]


def test_a_fault_is_felt_until_everything_is_ready() -> None:
    assert Recovery(Kind.API_KILLED, 100.0, pause=2.0, ready=3.0, fresh=60.0).end == 103.0
    assert not Recovery(Kind.API_KILLED, 100.0, pause=2.0, ready=None, fresh=60.0).healed


def test_memory_that_grows_is_seen_after_the_warm_up() -> None:
    warming = [(float(at), 50.0 + at) for at in range(60)]
    growing = [(float(at), 100.0 + at / 60.0) for at in range(60, 240)]

    found = books.trend(warming + growing, since=60.0)

    assert found is not None
    assert found.slope == pytest.approx(1.0)
    assert found.growth == pytest.approx(1.0 / 102.5, rel=1e-3)
    assert books.trend(warming, since=0.0) is None


# When.


def test_the_seed_says_when_what_happens_and_every_kind_does() -> None:
    plan = books.schedule(seed=1, seconds=600.0, every=40.0)

    assert plan == books.schedule(1, 600.0, 40.0) != books.schedule(2, 600.0, 40.0)
    assert set(Counter(kind for _, kind in plan).values()) == {2}
    # Time enough for a lease to run out.
    assert all(40.0 <= at <= 525.0 for at, _ in plan)
    assert [at < 30.0 for at, _ in books.schedule(1, seconds=60.0, every=10.0)] == [True, True]
    assert all(after - before >= 30.0 for (before, _), (after, _) in pairwise(plan))
