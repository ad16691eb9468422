"""What the detectors make of a stream, part by part."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from app.domain import watch as watching
from app.domain.model import AlarmPolicy
from app.domain.verdict import Attention
from app.domain.watch import Detectors, Part, Turn, Watch, advance, merged
from app.stats import assumption, moments, overdispersion
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference, from_confusion, from_sample
from tests import fashion
from tests.calibration.streams import grown
from tests.fashion_corrupted import corrupted

SEED = 20261118
POLICY = AlarmPolicy(calibration_panes=40, clear_panes=20)
KNOWN = replace(POLICY, overdispersion=1.0)
REFERENCE = from_confusion(np.array([[900, 60, 40], [60, 900, 40], [40, 40, 920]]))
ARL = 10_000.0
MIX = REFERENCE.predicted / REFERENCE.n
OTHER = np.array([0.6, 0.2, 0.2])
# The bets on a growth of 3 and 8 %: those on more win so rarely that a few hundred streams do not
# show their mean.
MILD = 6


def parts(counts: Counts, first: int = 0) -> list[Part]:
    """Panes of hard predictions, a minute each."""
    none = np.zeros(counts.shape[1], dtype=np.int64)
    return [Part(60 * (first + i), one, none, 0.0) for i, one in enumerate(counts)]


def stream(*stretches: tuple[Floats, int], per_pane: int = 30, seed: int = SEED) -> list[Part]:
    """Stretches of panes, each of its own mix."""
    rng = np.random.default_rng(seed)
    return parts(np.concatenate([rng.multinomial(per_pane, mix, size=n) for mix, n in stretches]))


def run(
    some: Iterable[Part],
    policy: AlarmPolicy = KNOWN,
    own: Detectors | None = None,
    watch: Watch | None = None,
) -> tuple[Watch, list[Turn]]:
    fed = list(some)
    own = own or watching.detectors(REFERENCE, ARL)

    def between(first: int, last: int) -> Part:
        found = [part for part in fed if first <= part.mark <= last]
        return replace(merged(replace(part, mark=last) for part in found)[0])

    return advance(watch or Watch(), own, fed, policy, between)


def test_before_the_scatter_is_known_everything_waits() -> None:
    watch, turns = run(stream((MIX, 40)), POLICY)

    assert watch.attention is Attention.CALIBRATING
    assert len(watch.waiting) == 40
    assert watch.panes == 0
    assert not turns


def test_enough_panes_arm_the_detectors_which_then_see_all_that_waited() -> None:
    quiet = stream((MIX, 41))

    waiting, _ = run(quiet[:30], POLICY)
    watch, _ = run(quiet[30:], POLICY, watch=waiting)

    assert watch.attention is Attention.QUIET
    assert watch.waiting == ()
    assert watch.panes == 41
    assert watch.shift is not None
    learned = watch.shift.baseline - 0.5 - REFERENCE.predicted
    assert learned == pytest.approx(
        np.sum([part.counts for part in quiet], axis=0) / watch.phi_upper
    )


def test_the_last_pane_may_be_open_and_does_not_count_for_calibration() -> None:
    quiet = stream((MIX, 40))
    more = replace(quiet[-1])

    watch, _ = run([*quiet, more], POLICY)

    assert len(watch.waiting) == 40
    assert not watch.armed


def test_a_shift_among_the_first_panes_is_found_and_not_taken_for_scatter() -> None:
    patient = replace(POLICY, calibration_panes=100)

    shifting = stream((MIX, 50), (OTHER, 60))
    naive = overdispersion.overdispersion(np.stack([part.counts for part in shifting[:100]]))

    watch, turns = run(shifting, patient)

    assert naive.phi > 2.0
    assert watch.phi == 1.0
    assert watch.phi_upper < naive.upper / 1.5
    assert turns
    assert turns[0].watch.attention is Attention.SHIFTED


def test_bursts_make_the_detectors_deafer() -> None:
    bursts = [replace(part, counts=4 * part.counts) for part in stream((MIX, 60), per_pane=8)]

    watch, _ = run(bursts, POLICY)

    assert watch.phi is not None
    assert watch.phi == pytest.approx(4.0, abs=1.5)
    assert watch.phi_upper > watch.phi


def test_a_known_scatter_arms_the_detectors_at_once() -> None:
    watch, _ = run(stream((MIX, 1)), KNOWN)

    assert watch.armed
    assert (watch.phi, watch.phi_upper) == (1.0, 1.0)


def test_a_shift_is_called_with_its_onset() -> None:
    watch, turns = run(stream((MIX, 50), (OTHER, 30)))

    assert watch.attention is Attention.SHIFTED
    first = turns[0].watch.shifted
    assert first is not None
    assert first.onset == pytest.approx(60 * 50, abs=120)
    assert turns[0].at < 60 * 60


def test_evidence_reaches_the_threshold_with_each_call_and_begins_anew() -> None:
    own = watching.detectors(REFERENCE, ARL)
    some = stream((MIX, 50), (OTHER, 60))
    watches = [run(some[: i + 1], own=own)[0] for i in range(len(some))]

    found = [watching.evidence(watch, own) for watch in watches]

    known = [one.statistic / one.threshold for one in found if one is not None]
    assert len(known) == len(some)
    first = next(i for i, watch in enumerate(watches) if watch.shifted is not None)
    raised = watches[first].shifted
    assert raised is not None
    assert known[first] == raised.statistic / own.shift.log_arl >= 1.0
    assert max(known[:first]) < 1.0
    assert known[first + 1] < 1.0
    assert 1.0 in known[first + 1 :]


def test_without_a_pane_there_is_no_evidence() -> None:
    own = watching.detectors(REFERENCE, ARL)
    shifted, _ = run(stream((MIX, 50), (OTHER, 60)), own=own)
    accepted = watching.accept(shifted, own, np.array([1080, 360, 360]), OTHER)

    assert watching.evidence(Watch(), own) is None
    assert watching.evidence(accepted, own) is None


def test_the_call_stays_while_the_shift_lasts_and_ends_after_it() -> None:
    watch, turns = run(stream((MIX, 50), (OTHER, 200), (MIX, 60)))

    called, over = turns
    assert not called.shift_over
    assert over.shift_over
    assert over.at > 60 * (250 + 5)
    assert watch.attention is Attention.QUIET


def test_a_shift_that_goes_on_is_never_over() -> None:
    watch, turns = run(stream((MIX, 50), (OTHER, 400)))

    assert len(turns) == 1
    assert watch.attention is Attention.SHIFTED


def test_what_the_detectors_learned_before_the_shift_is_kept_aside() -> None:
    _, turns = run(stream((MIX, 50), (OTHER, 30)))

    first = turns[0].watch
    assert first.frozen is not None
    assert first.shifted is not None
    before = REFERENCE.n + 30 * first.shifted.onset // 60
    assert first.frozen.sum() == pytest.approx(before, abs=1e-6)


def test_an_accepted_mix_is_normal_and_the_old_one_is_not() -> None:
    own = watching.detectors(REFERENCE, ARL)
    shifted, _ = run(stream((MIX, 50), (OTHER, 60)), own=own)
    accepted = watching.accept(shifted, own, np.array([1080, 360, 360]), OTHER)

    same, no_turns = run(stream((OTHER, 100), seed=2)[0:], own=own, watch=accepted)
    back, turns = run(
        parts(np.random.default_rng(3).multinomial(30, MIX, size=60), 500), own=own, watch=same
    )

    assert accepted.attention is Attention.QUIET
    assert accepted.accepted is OTHER
    assert no_turns == []
    assert turns
    assert back.confirmed is None


def test_more_than_the_references_error_is_confirmed() -> None:
    watch, _ = run(stream((MIX, 50), (OTHER, 60)))

    assert watch.confirmed is not None
    assert watching.without_shift(watch, watching.detectors(REFERENCE, ARL)).confirmed is None


def test_parts_of_a_pane_are_one_pane() -> None:
    whole = stream((MIX, 5))
    half = [replace(part, counts=part.counts // 2) for part in whole]
    rest = [
        replace(part, counts=part.counts - other.counts)
        for part, other in zip(whole, half, strict=True)
    ]
    in_parts = [part for pair in zip(half, rest, strict=True) for part in pair]

    one, _ = run(whole)
    two, _ = run(in_parts)

    assert one.panes == two.panes == 5
    assert one.shift is not None
    assert two.shift is not None
    assert two.shift.baseline.tolist() == one.shift.baseline.tolist()


def test_looking_often_does_not_add_to_the_evidence() -> None:
    """A pane in a hundred parts lets in no more gamblers than a pane in one."""
    rng = np.random.default_rng(SEED)
    sums = []
    for _ in range(300):
        single = parts(rng.multinomial(1, MIX, size=100))
        watch, _ = run(replace(part, mark=60) for part in single)
        assert watch.shift is not None
        sums.append(np.exp(watch.shift.log_m[:MILD]))

    # The mean of each bet's evidence after one pane is one, whatever the parts.
    mean, error = np.mean(sums, axis=0), np.std(sums, axis=0) / np.sqrt(300)
    assert np.all(np.abs(mean - 1.0) < 4 * error)
    # Each part as a pane of its own would let in a hundred.
    assert np.all(error < 1.0)


def test_late_parts_are_more_of_an_old_pane() -> None:
    watch, _ = run(stream((MIX, 5)))
    late = replace(stream((MIX, 1))[0], mark=120)

    found, _ = run([late], watch=watch)

    assert (found.newest, found.panes) == (240, 5)
    assert found.shift is not None
    assert watch.shift is not None
    assert found.shift.baseline.sum() == watch.shift.baseline.sum() + 30


def test_merged_parts_are_sorted_and_added_up() -> None:
    first, second = stream((MIX, 2))

    found = merged([second, first, second])

    assert [part.mark for part in found] == [0, 60]
    assert found[1].counts.tolist() == (2 * second.counts).tolist()


@pytest.fixture(scope="module")
def soft() -> Reference:
    pool = fashion.outputs("good", "validation")
    chosen = np.random.default_rng(SEED).choice(len(pool.labels), 10_000)
    rows = pool.rows[chosen]
    return from_sample(fashion.LABELS, moments.argmax(rows), pool.labels[chosen], rows)


def soft_parts(
    pool: fashion.Outputs, q: Floats, panes: int, rng: np.random.Generator, first: int = 0
) -> list[Part]:
    found = []
    for i in range(panes):
        rows = fashion.draw(pool, q, 20, rng).rows
        counts = np.bincount(moments.argmax(rows), minlength=fashion.LABELS)
        found.append(Part(60 * (first + i), counts, counts, float(rows.max(axis=1).sum())))
    return found


def test_a_drop_of_confidence_is_called_a_violation(soft: Reference) -> None:
    rng = np.random.default_rng(SEED)
    own = watching.detectors(soft, ARL, assumption.prepare(soft))
    nu = soft.nu
    clean = soft_parts(fashion.outputs("good", "test"), nu, 40, rng)
    dim = soft_parts(corrupted("dimmed"), nu, 40, rng, first=40)
    again = soft_parts(fashion.outputs("good", "test"), nu, 40, rng, first=80)

    calm, _ = run(clean, own=own)
    watch, turns = run(dim, own=own, watch=calm)
    healed, over = run(again, own=own, watch=watch)

    assert calm.attention is Attention.QUIET
    assert watch.attention is Attention.VIOLATED
    assert turns[0].watch.violated is not None
    assert [turn.violation_over for turn in over] == [True]
    assert healed.violated is None


def test_a_label_shift_is_no_violation(soft: Reference) -> None:
    rng = np.random.default_rng(SEED)
    q = grown(soft.nu, 3, 0.2)

    watch, _ = run(
        soft_parts(fashion.outputs("good", "test"), q, 60, rng), own=watching.detectors(soft, ARL)
    )

    assert watch.attention is Attention.SHIFTED


def test_the_two_that_raise_alarms_share_the_budget(soft: Reference) -> None:
    own = watching.detectors(soft, ARL)
    alone = watching.detectors(REFERENCE, ARL)

    assert own.monitor is not None
    assert np.exp([own.shift.log_arl, own.monitor.log_arl]) == pytest.approx([2 * ARL] * 2)
    assert alone.monitor is None
    assert np.exp(alone.shift.log_arl) == pytest.approx(ARL)


def test_without_known_confidence_a_violation_is_over_when_it_is_quiet(soft: Reference) -> None:
    rng = np.random.default_rng(SEED)
    own = watching.detectors(soft, ARL)
    dim = soft_parts(corrupted("dimmed"), soft.nu, 40, rng)
    clean = soft_parts(fashion.outputs("good", "test"), soft.nu, 40, rng, first=40)

    watch, _ = run(dim, own=own)
    healed, _ = run(clean, own=own, watch=watch)

    assert own.confidence is None
    assert watch.violated is not None
    assert healed.violated is None


def test_a_reference_that_separates_nothing_is_known_by_its_mean_confidence() -> None:
    rows = np.random.default_rng(SEED).dirichlet(np.ones(3), 300)
    blind = from_sample(3, np.zeros(300, dtype=np.int64), np.arange(300) % 3, rows)

    own = watching.detectors(blind, ARL, assumption.prepare(blind))

    assert own.confidence is not None
    assert own.confidence.h[0] == pytest.approx(rows.max(axis=1).mean())


def test_a_mix_that_lasts_is_never_called_over() -> None:
    """As sure that it is over as that it began: a look at a short stretch is not enough."""
    watch, turns = run(stream((MIX, 50), (np.array([0.42, 0.29, 0.29]), 1500), per_pane=10))

    assert [turn.shift_over for turn in turns] == [False]
    assert watch.shifted is not None
    assert watch.shifted.recent > watch.shifted.onset


def test_a_part_without_predictions_is_no_step() -> None:
    before, _ = run(stream((MIX, 50)))
    nothing = np.zeros(3, dtype=np.int64)

    after, turns = run([Part(60 * 999, nothing, nothing, 0.0)], watch=before)

    assert (after.newest, after.panes, turns) == (before.newest, before.panes, [])
