"""Coverage and width of hard 95 % intervals for a rare label of two, beside Lee et al.'s.

    python -m bench.rare_labels           # the table
    python -m bench.rare_labels --all     # every setting of the grid, and the worst of each figure

A reference of `negatives` and `positives` records, a window of m predictions, and the share of the
positive label is to be estimated. Ours has to cover .94 or more, and be at most 3 % wider.
"""

import argparse
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import product

import numpy as np

from app.stats import cells, estimator, intervals
from app.stats.intervals import quantile
from app.stats.moments import Floats

DRAWS = 4_000
LEAST_COVERAGE = 0.94
MOST_WIDTH = 1.03


@dataclass(frozen=True, slots=True)
class Setting:
    """A label's share, its classifier, the window's size and the reference's records by label."""

    share: float
    sensitivity: float
    specificity: float
    m: int
    negatives: int
    positives: int


@dataclass(frozen=True, slots=True)
class Draws:
    """Counts of positive predictions: among both labels of references, and in windows."""

    false_positives: Floats
    true_positives: Floats
    window: Floats


@dataclass(frozen=True, slots=True)
class Figures:
    coverage: float
    width: float


TABLE = [
    Setting(0.002, 0.9, 0.998, 50_000, 5000, 50),
    Setting(0.002, 0.98, 0.99, 5000, 300, 300),
    Setting(0.002, 0.7, 0.95, 500, 100, 100),
    Setting(0.01, 0.9, 0.99, 5000, 300, 300),
    Setting(0.01, 0.9, 0.99, 500, 300, 300),
    Setting(0.01, 0.9, 0.99, 50_000, 2000, 2000),
    Setting(0.01, 0.7, 0.998, 5000, 2000, 2000),
    Setting(0.01, 0.98, 0.998, 5000, 100, 100),
    Setting(0.01, 0.7, 0.998, 50_000, 5000, 50),
    Setting(0.01, 0.9, 0.95, 5000, 5000, 50),
    Setting(0.05, 0.9, 0.99, 5000, 300, 300),
    Setting(0.05, 0.7, 0.95, 500, 100, 100),
    Setting(0.05, 0.98, 0.99, 50_000, 2000, 2000),
    Setting(0.05, 0.9, 0.998, 5000, 5000, 50),
    Setting(0.05, 0.7, 0.95, 50_000, 5000, 50),
    Setting(0.3, 0.9, 0.95, 500, 300, 300),
    Setting(0.3, 0.7, 0.95, 5000, 100, 100),
    Setting(0.3, 0.98, 0.99, 5000, 2000, 2000),
    Setting(0.3, 0.7, 0.95, 50_000, 5000, 50),
]
REFERENCES = [(100, 100), (300, 300), (2000, 2000), (5000, 50)]


def grid() -> list[Setting]:
    shares, sensitivities = (0.002, 0.01, 0.05, 0.3), (0.7, 0.9, 0.98)
    specificities, sizes = (0.95, 0.99, 0.998), (500, 5000, 50_000)
    made = product(shares, sensitivities, specificities, sizes, REFERENCES)
    return [
        Setting(share, sensitivity, specificity, m, negatives, positives)
        for share, sensitivity, specificity, m, (negatives, positives) in made
    ]


def draw(setting: Setting, draws: int, seed: int) -> Draws:
    rng = np.random.default_rng(seed)
    alarms = 1.0 - setting.specificity
    positive = setting.share * setting.sensitivity + (1.0 - setting.share) * alarms
    return Draws(
        rng.binomial(setting.negatives, alarms, draws).astype(float),
        rng.binomial(setting.positives, setting.sensitivity, draws).astype(float),
        rng.binomial(setting.m, positive, draws).astype(float),
    )


def ours(setting: Setting, draws: Draws) -> tuple[Floats, Floats]:
    """The service's own, estimate by estimate; many draws are the same."""
    drawn = np.stack([draws.false_positives, draws.true_positives, draws.window], axis=1)
    different, place = np.unique(drawn, axis=0, return_inverse=True)
    ends = np.array([_interval(setting, *one) for one in different])[place.ravel()]
    return ends[:, 0], ends[:, 1]


def _interval(
    setting: Setting, false_positives: float, true_positives: float, positive: float
) -> tuple[float, float]:
    confusion = np.array(
        [
            [setting.negatives - false_positives, setting.positives - true_positives],
            [false_positives, true_positives],
        ]
    )
    on = estimator.prepare(cells.of_confusion(confusion.astype(np.int64), np.arange(2)))
    window = np.array([setting.m - positive, positive])
    found = estimator.estimate(on, window if len(on.table.first) == 2 else window[:1])
    share = intervals.shares(intervals.design(on, found), found)
    return float(share.lower[1]), float(share.upper[1])


def lee(setting: Setting, draws: Draws, level: float = 0.95) -> tuple[Floats, Floats]:
    """Lee et al. (arXiv 2511.21140), the formula of Lang and Reiczigel (2014).

    Pseudo-counts in all three rates, and a centre moved by how the variance changes with the share.
    """
    z = quantile(level)
    m, n0, n1 = setting.m + z**2, setting.negatives + 2.0, setting.positives + 2.0
    p = (draws.window + z**2 / 2.0) / m
    false_positive, true_positive = (
        (draws.false_positives + 1.0) / n0,
        (draws.true_positives + 1.0) / n1,
    )
    noise0 = false_positive * (1.0 - false_positive) / n0
    noise1 = true_positive * (1.0 - true_positive) / n1
    apart = true_positive - false_positive
    share = (p - false_positive) / apart
    moved = share + 2.0 * z**2 * (share * noise1 - (1.0 - share) * noise0)
    variance = p * (1.0 - p) / m + (1.0 - share) ** 2 * noise0 + share**2 * noise1
    half = z * np.sqrt(variance) / np.abs(apart)
    return np.clip(moved - half, 0.0, 1.0), np.clip(moved + half, 0.0, 1.0)


def figures(setting: Setting, lower: Floats, upper: Floats) -> Figures:
    held = (lower <= setting.share) & (setting.share <= upper)
    return Figures(float(held.mean()), float((upper - lower).mean()))


def measure(setting: Setting, draws: int, seed: int) -> tuple[Figures, Figures]:
    """Figures of ours and of Lee et al.'s, from the same draws."""
    drawn = draw(setting, draws, seed)
    return figures(setting, *ours(setting, drawn)), figures(setting, *lee(setting, drawn))


def line(setting: Setting, own: Figures, theirs: Figures) -> str:
    share, sensitivity, specificity, m, negatives, positives = astuple(setting)
    ratio = own.width / theirs.width
    kept = own.coverage >= LEAST_COVERAGE and ratio <= MOST_WIDTH
    return (
        f"{share:>5} {sensitivity:>5} {specificity:>5} {m:>6} {negatives:>6} {positives:>6} | "
        f"{own.coverage:>8.3f} {own.width:>7.4f} | {theirs.coverage:>8.3f} {theirs.width:>7.4f} | "
        f"{ratio:>5.3f} {'' if kept else 'missed'}".rstrip()
    )


def summary(found: Sequence[tuple[Figures, Figures]]) -> str:
    ratios = np.array([own.width / theirs.width for own, theirs in found])
    return (
        f"{len(found)} settings; least coverage: ours {min(own.coverage for own, _ in found):.3f}, "
        f"Lee et al. {min(theirs.coverage for _, theirs in found):.3f}; "
        f"widths, ours by theirs: {np.exp(np.log(ratios).mean()):.3f} (geometric mean), "
        f"{ratios.max():.3f} (most)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="hard intervals of a rare label")
    parser.add_argument("--all", action="store_true", help="every setting of the grid")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(" share  sens  spec      m      n0     n1 | coverage   width | Lee et al.  width | ratio")
    found = []
    for setting in grid() if args.all else TABLE:
        own, theirs = measure(setting, args.draws, args.seed)
        print(line(setting, own, theirs), flush=True)
        found.append((own, theirs))
    print(summary(found))


if __name__ == "__main__":
    main()
