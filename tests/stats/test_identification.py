"""Which labels a reference tells apart, and which only together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.stats import estimator, identification, intervals
from app.stats.identification import Identification
from app.stats.moments import Counts
from tests.stats import golden
from tests.stats.golden import hard


def identified(counts: Counts) -> Identification:
    return identification.identify(hard(counts))


def test_of_a_good_reference_every_label_is_identified() -> None:
    found = identified(np.diag([900, 800, 700]) + 20)

    assert (found.not_identified, found.weakly_identified, found.groups) == ((), (), ())
    assert (found.floor < 0.1).all()
    assert found.anything


def test_a_floor_is_the_expected_half_length_of_a_window_without_end() -> None:
    on = hard(golden.THREE)

    found = identification.identify(on)

    # No window of the same mix does better, and a very long one as well.
    for m in (100.0, 1e4):
        at = intervals.planned(on, on.even, m)
        assert (intervals.expected_half_lengths(at) > found.floor).all()
    long = intervals.planned(on, on.even, 1e8)
    assert intervals.expected_half_lengths(long) == pytest.approx(found.floor, rel=1e-3)


def test_a_floor_worked_by_hand() -> None:
    # Of label 0 with recalls .9 and .8: sqrt(.25 .09 + .25 .16) / sqrt(1000) / .7, and strays of
    # one record in 333, whose mean square is near 1 here.
    found = identified(np.array([[900, 200], [100, 800]]))

    plain = 1.96 * np.sqrt(0.25 * (0.09 + 0.16) / 1000) / 0.7
    assert found.floor == pytest.approx([plain, plain], rel=0.02)


def test_labels_with_equal_columns_are_known_together() -> None:
    found = identified(golden.TWINS)

    assert found.not_identified == (1, 2)
    assert found.weakly_identified == ()
    assert found.groups == ((1, 2),)
    assert found.floor[1:].tolist() == [0.5, 0.5]
    assert found.anything


def test_three_labels_alike_are_one_group() -> None:
    counts = np.array(
        [
            [180, 5, 5, 5],
            [10, 70, 70, 70],
            [5, 65, 65, 65],
            [5, 60, 60, 60],
        ]
    )

    found = identified(counts)

    assert (found.not_identified, found.groups) == ((1, 2, 3), ((1, 2, 3),))


def test_two_pairs_and_a_trio_are_told_apart() -> None:
    counts = np.zeros((7, 7), dtype=np.int64)
    counts[:2, :2], counts[2:4, 2:4], counts[4:, 4:] = 100, 80, 60

    found = identified(counts)

    assert found.groups == ((0, 1), (2, 3), (4, 5, 6))
    assert found.not_identified == tuple(range(7))
    # No single label is known, but the groups are.
    assert found.anything


def test_of_two_labels_alike_there_is_nothing_to_know() -> None:
    found = identified(np.array([[50, 25], [50, 25]]))

    # Together they are all there is.
    assert (found.not_identified, found.groups) == ((0, 1), ())
    assert not found.anything


def guessing(k: int) -> Counts:
    rng = np.random.default_rng(k)
    return np.asarray(rng.multinomial(60 * k, np.full(k * k, k**-2.0)).reshape(k, k))


def test_a_classifier_that_guesses_one_of_two_identifies_nothing() -> None:
    assert not identified(guessing(2)).anything


@pytest.mark.parametrize("k", [10, 60])
def test_a_classifier_that_guesses_identifies_hardly_any_label(k: int) -> None:
    found = identified(guessing(k))

    # Chance differences of 60 records a label may pass for a little knowledge.
    assert len(found.not_identified) + len(found.weakly_identified) >= 0.9 * k


def test_labels_that_differ_a_little_are_weakly_identified_and_known_together() -> None:
    counts = np.array([[450, 50, 50], [25, 270, 180], [25, 180, 270]])

    found = identified(counts)

    # Half of (mu_1 - mu_2) / .18 tells labels 1 and 2 apart. A record's 1 or -1 has the variance
    # .9 - .18^2; 500 of each label, with shares of 1/3, make 1.96 sqrt(2/9 .868 / 500) / .36.
    assert found.weakly_identified == (1, 2)
    assert found.not_identified == ()
    assert found.groups == ((1, 2),)
    plain = 1.96 * np.sqrt(2 / 9 * 0.868 / 500) / 0.36
    assert found.floor[1:] == pytest.approx([plain, plain], rel=0.05)


def test_more_records_identify_what_differs_at_all() -> None:
    counts = np.array([[180, 20, 20], [10, 105, 75], [10, 75, 105]])

    floors = [identified(counts * times).floor[1] for times in (1, 10, 100)]

    assert floors[0] > floors[1] > floors[2]
    assert floors[2] < 0.1


def test_a_label_never_predicted_leaves_the_one_it_is_taken_for_open() -> None:
    found = identified(np.array([[90, 10, 5], [10, 90, 95], [0, 0, 0]]) * 20)

    assert found.not_identified == (1, 2)
    assert found.floor[0] < 0.1


def test_absent_labels_have_no_floor_and_are_not_said_to_be_unidentified() -> None:
    counts = np.array([[180, 2, 20, 20], [0, 0, 0, 0], [10, 1, 90, 90], [10, 0, 90, 90]])

    found = identified(counts)

    # By position among the model's labels: label 1 has three records.
    assert np.isnan(found.floor).tolist() == [False, True, False, False]
    assert (found.not_identified, found.groups) == ((2, 3), ((2, 3),))


def test_cells_of_codes_identify_what_argmaxes_do_not() -> None:
    # Two labels with the same argmax, told apart by how sure the classifier is.
    counts = np.array([[160, 40], [40, 160]])
    by_code = estimator.prepare(
        golden.soft_table(counts, counts.astype(np.float64), np.array([0, 0]))
    )

    found = identification.identify(by_code)
    by_label = identified(np.array([[200, 200], [0, 0]]))

    assert found.not_identified == ()
    assert by_label.not_identified == (0, 1)


# Labels 1 and 2 differ by what counting 100 records of each makes of nothing.
BY_CHANCE = np.array([[180, 5, 5], [10, 92, 95], [10, 103, 100]])


def test_differences_no_larger_than_counting_noise_are_doubted() -> None:
    on = hard(BY_CHANCE)

    (direction,) = on.doubted.T
    found = identification.identify(on)

    assert np.abs(direction) == pytest.approx([0.0, 0.5**0.5, 0.5**0.5], abs=0.01)
    assert direction[1] * direction[2] < 0.0
    assert found.not_identified == (1, 2)
    assert found.groups == ((1, 2),)


def test_larger_differences_are_not_doubted_nor_is_what_does_not_differ_at_all() -> None:
    assert hard(golden.THREE).doubted.shape == (3, 0)
    assert hard(BY_CHANCE * 10**4).doubted.shape == (3, 0)
    assert hard(golden.TWINS).doubted.shape == (3, 0)


def test_what_is_doubted_depends_on_what_a_window_has() -> None:
    # Labels 0 and 1 differ surely, if not much. Of label 2 there are five records, which cannot say
    # where it is predicted: where there is much of it, cells hardly tell of the other two.
    on = hard(np.array([[2400, 2100, 3], [2100, 2400, 0], [100, 100, 2]]))

    without, with_much = (
        intervals.planned(on, np.array(q), 1e5) for q in ([0.5, 0.5, 0.0], [0.05, 0.05, 0.9])
    )

    assert without.doubted.shape == (3, 0)
    assert with_much.doubted.shape == (3, 1)
    assert on.doubted.shape == (3, 1)


def test_estimates_stay_within_reason_where_some_labels_are_doubted_and_some_equal() -> None:
    # Labels 1 and 2 are equal, labels 3 and 4 differ by chance.
    counts = np.array(
        [
            [180, 5, 5, 5, 5],
            [5, 90, 90, 5, 5],
            [5, 90, 90, 5, 5],
            [5, 7, 7, 92, 95],
            [5, 8, 8, 93, 90],
        ]
    )
    on = hard(counts)

    K = intervals.planned(on, on.nu, 1000.0).unbiased.K

    assert on.doubted.shape == (5, 1)
    # A share is no more than a few times that of any cell.
    assert np.abs(K).max() < 10.0


def test_of_a_handful_of_records_little_is_identified_and_nothing_fails() -> None:
    found = identified(np.array([[12, 5, 5], [2, 0, 0], [0, 0, 0]]))

    assert found.not_identified == (0, 1, 2)


def test_groups_are_known_to_a_tenth() -> None:
    on = hard(golden.TWINS)
    rows = intervals.memberships(3, [(1, 2)])

    assert intervals.expected_half_lengths(intervals.endless(on), rows)[0] <= 0.1


def test_nothing_is_identified_of_fewer_than_two_labels() -> None:
    assert identification.nothing(1).not_identified == ()
    assert identification.nothing(3).not_identified == (0, 1, 2)
    assert not identification.nothing(3).anything
    assert np.isnan(identification.nothing(3).floor).all()


@given(st.integers(0, 2**32 - 1), st.permutations(range(5)))
@settings(deadline=None, max_examples=30)
def test_the_order_of_labels_does_not_matter(seed: int, order: list[int]) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(90, rng.dirichlet(np.ones(5)), size=5).T
    counts += np.diag(rng.integers(20, 90, size=5))
    # Labels 3 and 4 look alike, but for their number.
    counts[:, 4] = 2 * counts[:, 3]

    one = identified(counts)
    other = identified(counts[np.ix_(order, order)])

    assert other.floor == pytest.approx(one.floor[order], abs=1e-6)
    assert sorted(order[label] for label in other.not_identified) == list(one.not_identified)
    renamed = sorted(tuple(sorted(order[label] for label in group)) for group in other.groups)
    assert renamed == sorted(one.groups)
