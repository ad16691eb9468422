"""What is spoken of first."""

import pytest

from app.domain.evaluation import GroupShare, Identified, LabelColumns
from app.domain.moved import Moved
from app.web.moved import most

LABELS = ("boot", "coat", "pullover", "shirt")
P = (0.25, 0.25, 0.25, 0.25)


def test_the_label_that_moved_most_is_spoken_of() -> None:
    columns = LabelColumns(p=P, q=(0.3, 0.25, 0.25, 0.2), q_lower=(0.2,) * 4, q_upper=(0.4,) * 4)

    assert most(LABELS, columns, Identified(), ()) == Moved("shirt", 0.25, 0.2, 0.2, 0.4)


def test_nothing_is_spoken_of_where_no_mix_is_known() -> None:
    assert most(LABELS, LabelColumns(p=P), Identified(), ()) is None


@pytest.mark.parametrize(
    "identified",
    [Identified(not_identified=(1, 2)), Identified(weakly_identified=(1, 2))],
)
def test_of_labels_that_look_alike_the_sum_is_spoken_of(identified: Identified) -> None:
    # It was coat that grew; the split of the two is not known.
    columns = LabelColumns(
        p=P, q=(0.15, 0.34, 0.36, 0.15), q_lower=(0.1, 0.0, 0.0, 0.1), q_upper=(0.2, 0.7, 0.7, 0.2)
    )
    group = GroupShare((1, 2), 0.7, 0.65, 0.75)

    assert most(LABELS, columns, identified, (group,)) == Moved(
        "coat or pullover", 0.5, 0.7, 0.65, 0.75
    )


def test_a_label_that_is_hardly_known_is_spoken_of_where_it_surely_moved() -> None:
    identified = Identified(weakly_identified=(1, 2, 3))
    columns = LabelColumns(
        p=P, q=(0.2, 0.6, 0.1, 0.1), q_lower=(0.1, 0.4, 0.0, 0.0), q_upper=(0.3, 0.8, 0.3, 0.3)
    )

    assert most(LABELS, columns, identified, ()) == Moved("coat", 0.25, 0.6, 0.4, 0.8)


def test_nothing_is_spoken_of_where_every_share_may_be_what_it_was() -> None:
    columns = LabelColumns(p=P, q=(0.4, 0.2, 0.2, 0.2), q_lower=(0.0,) * 4, q_upper=(1.0,) * 4)

    assert most(LABELS, columns, Identified(not_identified=(0, 1, 2, 3)), ()) is None


def test_the_smaller_of_two_equal_steps_is_spoken_of() -> None:
    # From .1 to .19 is nearly twice as much; from .6 to .5 is a sixth less.
    columns = LabelColumns(p=(0.6, 0.3, 0.1), q=(0.5, 0.31, 0.19))

    found = most(("a", "b", "c"), columns, Identified(), ())

    assert found is not None
    assert found.label == "c"
