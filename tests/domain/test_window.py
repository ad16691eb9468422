from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.domain.window import Window, WindowKind, longest, pane_start, slot, span, stride

seconds = st.integers(0, 4_000_000_000)
moments = seconds.map(lambda second: datetime.fromtimestamp(second + 0.25, UTC))
panes = st.integers(1, 86_400).map(lambda seconds: timedelta(seconds=seconds))


@given(panes, moments)
def test_every_moment_lies_in_its_own_pane(pane: timedelta, at: datetime) -> None:
    start = pane_start(at, pane)

    assert start <= at < start + pane
    assert pane_start(start, pane) == start


@given(panes, st.integers(1, 500), moments)
def test_a_sliding_window_ends_with_the_open_pane(
    pane: timedelta, count: int, now: datetime
) -> None:
    start, end = span(Window("w", WindowKind.SLIDING, length=pane * count), pane, now)

    assert end - start == pane * count
    assert end - pane <= now < end


@given(panes, st.integers(1, 500), moments)
def test_tumbling_windows_do_not_overlap(pane: timedelta, count: int, now: datetime) -> None:
    window = Window("w", WindowKind.TUMBLING, length=pane * count)

    start, end = span(window, pane, now)

    assert start <= now < end
    assert span(window, pane, end)[0] == end
    assert span(window, pane, end - timedelta(microseconds=1)) == (start, end)


def test_a_window_without_a_length_ends_with_the_open_pane() -> None:
    window = Window("w", WindowKind.LAST, count=100)

    start, end = span(window, timedelta(minutes=1), datetime(2026, 11, 17, 10, 0, 30, tzinfo=UTC))

    assert start == end == datetime(2026, 11, 17, 10, 1, tzinfo=UTC)


MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
TEN = datetime(2026, 11, 17, 10, 0, tzinfo=UTC)


def test_a_tumbling_window_has_one_place_in_the_history() -> None:
    window = Window("w", WindowKind.TUMBLING, length=HOUR)

    assert slot(window, MINUTE, TEN + HOUR) == TEN


def test_windows_that_count_are_kept_every_few_panes() -> None:
    last, live = Window("l", WindowKind.LAST, count=9), Window("v", WindowKind.VERSION)

    assert [stride(one, MINUTE) for one in (last, live)] == [5 * MINUTE, HOUR]
    assert slot(last, MINUTE, TEN + 8 * MINUTE) == TEN + 5 * MINUTE


def test_the_longest_window_is_that_of_the_clock() -> None:
    hour = Window("h", WindowKind.SLIDING, length=HOUR)

    assert longest([hour, Window("l", WindowKind.LAST, count=9)]) == HOUR
    assert longest([Window("l", WindowKind.LAST, count=9)]) == timedelta(0)
