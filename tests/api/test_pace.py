import pytest

from app.api.pace import MANY_BATCHES, MOST_ANSWERS, Answers, Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def beat(found: Pace, times: int, model: str = "fraud") -> None:
    for _ in range(times):
        found.beat(model)


def test_a_stream_is_fast_once_many_batches_came_in_a_second(clock: list[float]) -> None:
    found = Pace()
    beat(found, MANY_BATCHES - 1)
    few = found.is_fast("fraud")
    beat(found, 1)

    assert (few, found.is_fast("fraud"), found.is_fast("other")) == (False, True, False)


def test_it_stays_so_over_the_turn_of_a_second_and_no_longer(clock: list[float]) -> None:
    found = Pace()
    beat(found, MANY_BATCHES)
    clock[0] = 101.0
    beat(found, 1)
    after_one = found.is_fast("fraud")
    clock[0] = 102.0
    beat(found, 1)

    assert (after_one, found.is_fast("fraud")) == (True, False)


def test_what_was_fast_long_ago_is_not(clock: list[float]) -> None:
    found = Pace()
    beat(found, MANY_BATCHES)
    clock[0] = 102.5

    assert not found.is_fast("fraud")


def test_an_answer_is_given_again_for_a_second(clock: list[float]) -> None:
    found = Answers()
    found.remember("a", b"1")
    clock[0] = 101.0
    again = found.get("a")
    clock[0] = 101.1

    assert (again, found.get("a"), found.get("b")) == (b"1", None, None)


def test_answers_are_not_without_number(clock: list[float]) -> None:
    found = Answers()
    for i in range(3 * MOST_ANSWERS):
        found.remember(i, b"")

    assert len(found._known) <= MOST_ANSWERS
