"""How far an estimated label mix may be off, counting the noise of both samples.

Every interval inverts a test around a linear estimate `K mu`, which has the window's noise and the
reference's; leaving out the second is the usual mistake, and at a thousand labelled records it
halves the coverage. Labels that look alike make an unbiased `K` useless. There a ridge keeps the
noise small at the price of bias, whose worst case over all mixes is known and is added
(bias-aware intervals; Armstrong and Kolesar, 2018). So what is not identified gets a wide interval,
and nothing else does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri

from app.stats import estimator, two_labels
from app.stats.estimator import ENDLESS, MANY_LABELS, Estimate, Operator, Weighing
from app.stats.moments import Bools, Counts, Floats

# Ridges to try besides none, in records; the shortest expected interval wins, if it is shorter by
# two percent. None are tried while all intervals are expected to be as short as this.
RIDGES = (1.0, 10.0, 100.0)
SHORT_ENOUGH = 0.1
WORTH_A_RIDGE = 0.98

# Of the largest entry of `H`: a ridge that an estimate does not get over.
WALL = 10.0

# An estimate that moves by less than this part of its label's share says nothing of it.
LEAST_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class Intervals:
    """One interval for each share; `vacuous` ones are all of [0, 1], as nothing is known."""

    lower: Floats
    upper: Floats
    vacuous: Bools


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear estimates `K mu` of shares, one a row: of labels, or of groups of labels.

    `G = K A` is what each is on average given each label; None where it is the identity.
    """

    K: Floats
    G: Floats | None

    def means(self, size: int) -> Floats:
        """`G`, whichever it is."""
        return np.eye(size) if self.G is None else self.G


@dataclass(frozen=True, slots=True)
class Terms:
    """What decides the interval of each share, if its truth were t.

    The estimate's variance is `c0 + c1 t + c2 t^2`. Its mean is `t` times something between
    `in_low` and `in_high` (labels of the share) plus `1 - t` times something between `out_low` and
    `out_high` (all others). At the estimated mix its standard deviation is `sd` and its worst bias
    `bias`.
    """

    c0: Floats
    c1: Floats
    c2: Floats
    in_low: Floats
    in_high: Floats
    out_low: Floats
    out_high: Floats
    sd: Floats
    bias: Floats
    _arms: dict[float, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)

    def arm(self, level: float) -> Floats:
        """The standard deviations to reach beyond the bias: worked out once, asked for often."""
        if level not in self._arms:
            self._arms[level] = arm(self.bias, self.sd, level)
        return self._arms[level]

    def half_length(self, level: float) -> Floats:
        """The expected half-length; large where the estimate does not move with the share."""
        gain = np.abs(self.in_low + self.in_high - self.out_low - self.out_high) / 2.0
        reach = self.bias + self.arm(level) * self.sd
        return np.asarray(reach / np.maximum(gain, np.finfo(np.float64).tiny))


@dataclass(frozen=True)
class Design:
    """A reference at one mix `q` and for `m` predictions: all that intervals are made from.

    The mix is kept off the boundary, where single cells would be trusted blindly. `weighing` may be
    that of a mix near by.
    """

    on: Operator
    q: Floats
    m: float
    weighing: Weighing

    @cached_property
    def doubted(self) -> Floats:
        """What the reference may only seem to see in this window, if there is anything at all.

        A label that the window has hardly any of does not make it doubt others. For very many
        labels that takes too long to find out.
        """
        if self.on.size > MANY_LABELS:
            return self.on.doubted
        if not self.on.suspect:
            return np.zeros((self.on.size, 0))
        return estimator.doubted(self.on, self.weighing)

    @cached_property
    def unbiased(self) -> Linear:
        """Without a ridge: unbiased for every label that is identified."""
        if self.doubted.size:
            return self.ridge(0.0)
        inverse, regular = estimator.inverted(self.weighing.H)
        K = inverse @ (self.on.A * self.weighing.D[:, None]).T
        return Linear(K, None if regular else K @ self.on.A)

    @cached_property
    def alone(self) -> Terms:
        """Of single labels, without a ridge."""
        return label_terms(self, self.unbiased)

    @cached_property
    def exact(self) -> Bools:
        """Which labels are identified: estimated without bias whatever the mix."""
        return np.asarray((self.alone.bias == 0.0) & (self.alone.in_low == 1.0))

    @cached_property
    def of_labels(self) -> list[tuple[Linear, Terms]]:
        """The linear estimates that intervals choose from, the unbiased one first, with terms.

        With ridges only where it may be worth it; for very many labels each would take a second.
        """
        plain = [(self.unbiased, self.alone)]
        short = (self.alone.half_length(0.95) <= SHORT_ENOUGH).all()
        if short or self.on.size > MANY_LABELS:
            return plain
        ridged = [self.ridge(kappa) for kappa in RIDGES]
        return plain + [(of, label_terms(self, of)) for of in ridged]

    def ridge(self, kappa: float) -> Linear:
        """`(H + kappa I)^-1 A' D`, and what makes its columns sum to one added evenly.

        Directions that are doubted have a ridge that leaves nothing of them.
        """
        on, H = self.on, self.weighing.H
        wall = WALL * H.diagonal().max() * (self.doubted @ self.doubted.T)
        inverse, _ = estimator.inverted(H + kappa * np.eye(on.size) + wall)
        K, v = inverse @ (on.A * self.weighing.D[:, None]).T, inverse.sum(axis=1)
        K = K + np.outer(v / v.sum(), 1.0 - K.sum(axis=0))
        return Linear(np.asarray(K), np.asarray(K @ on.A))


def design(on: Operator, estimate: Estimate) -> Design:
    """Where the intervals of an estimate are made: at its mix, a record away from the boundary."""
    q = (estimate.m * estimate.q + 1.0) / (estimate.m + on.size)
    # For very many labels the weights that the estimate was made with are near enough.
    near = estimate.weighing if on.size > MANY_LABELS else None
    return Design(on, q, estimate.m, near or estimator.weighing(on, q, estimate.m))


def planned(on: Operator, q: Floats, m: float) -> Design:
    """What a window of `m` predictions with label mix `q` would leave unknown."""
    return Design(on, q, m, estimator.weighing(on, q, m))


def endless(on: Operator) -> Design:
    """The same of a window without end, at a mix between even and the reference's."""
    return planned(on, on.even, ENDLESS)


def label_terms(at: Design, of: Linear) -> Terms:
    """Of single labels: sums over all labels, less the label's own part."""
    on, q = at.on, at.q
    squares, noise = of.K**2, _Noise(on, of)
    own_E = np.einsum("ib,bi->i", squares, on.A)
    own_G = np.ones(on.size) if of.G is None else np.diag(of.G)
    own_R = (own_E - own_G**2) / on.n_j + on.stray / on.n_j * noise.astray(own_G)
    rest = np.maximum(1.0 - q, np.finfo(np.float64).tiny)
    all_G = q if of.G is None else of.G @ q
    parts = _Parts(
        E_own=own_E,
        E_rest=(squares @ (on.A @ q) - q * own_E) / rest,
        G_own=own_G,
        G_rest=(all_G - q * own_G) / rest,
        R_own=own_R,
        R_rest=np.maximum(noise.of(q**2, squares) - q**2 * own_R, 0.0) / rest**2,
    )
    if of.G is None:
        zero = np.zeros(on.size)
        return _terms(at, q, parts, (own_G, own_G), (zero, zero))
    outside = ~np.eye(on.size, dtype=np.bool_)
    exact = np.abs(own_G - 1.0) < ROUNDING
    inside = np.where(exact, 1.0, own_G)
    return _terms(at, q, parts, (inside, inside), _range(of.G, outside, 0.0))


def group_terms(at: Design, of: Linear, groups: Floats) -> Terms:
    """Of groups of labels, a row each, with one for each label in it.

    Inside and outside a group, labels keep their proportions while its share moves.
    """
    on, q = at.on, at.q
    G = of.K @ on.A
    squares, inside = of.K**2, groups > 0.0
    second = squares @ on.A
    strayed = _Noise(on, of).astray(G.T).T
    noise = (np.maximum(second - G**2, 0.0) + on.stray * strayed) / on.n_j
    share = groups @ q
    own = groups * q / share[:, None]
    rest = (1.0 - groups) * q / np.maximum(1.0 - share, np.finfo(np.float64).tiny)[:, None]
    parts = _Parts(
        E_own=(own * second).sum(axis=1),
        E_rest=(rest * second).sum(axis=1),
        G_own=(own * G).sum(axis=1),
        G_rest=(rest * G).sum(axis=1),
        R_own=(own**2 * noise).sum(axis=1),
        R_rest=(rest**2 * noise).sum(axis=1),
    )
    return _terms(at, share, parts, _range(G, inside, 1.0), _range(G, ~inside, 0.0))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of each share: mean square, mean and reference noise, of its own labels and of the rest."""

    E_own: Floats
    E_rest: Floats
    G_own: Floats
    G_rest: Floats
    R_own: Floats
    R_rest: Floats


def _terms(
    at: Design,
    share: Floats,
    parts: _Parts,
    inside: tuple[Floats, Floats],
    outside: tuple[Floats, Floats],
) -> Terms:
    m, apart = at.m, parts.G_own - parts.G_rest
    c0 = (parts.E_rest - parts.G_rest**2) / m + parts.R_rest
    c1 = (parts.E_own - parts.E_rest - 2.0 * parts.G_rest * apart) / m - 2.0 * parts.R_rest
    c2 = -(apart**2) / m + parts.R_own + parts.R_rest
    sd = np.sqrt(np.maximum(c0 + c1 * share + c2 * share**2, 1e-300))
    spread_out, spread_in = outside[1] - outside[0], inside[1] - inside[0]
    bias = (spread_out * (1.0 - share) + spread_in * share) / 2.0
    return Terms(c0, c1, c2, *inside, *outside, sd, bias)


class _Noise:
    """The reference's noise in linear estimates, for records of each label.

    `R_il = { sum_b K_ib^2 A_bl - G_il^2 + s_l sum_b mix_b (K_ib - G_il)^2 } / n_l`, where `s_l` is
    the share of label l's records that may stray. Sums of it over labels need no matrix of it.
    """

    def __init__(self, on: Operator, of: Linear) -> None:
        self._on, self._of = on, of
        self._square, self._mean = of.K**2 @ on.mix, of.K @ on.mix

    def astray(self, G: Floats) -> Floats:
        """`sum_b mix_b (K_ib - G_i)^2`; the last axis of G is that of the estimates."""
        return np.asarray(self._square - 2.0 * G * self._mean + G**2)

    def of(self, weights: Floats, squares: Floats) -> Floats:
        """`sum_l weights_l R_il` for each estimate i."""
        on, G = self._on, self._of.G
        plain = weights / on.n_j
        stray = on.stray * plain
        own = squares @ (on.A @ plain)
        if G is None:
            of_G, of_squares, of_plain = stray, stray, plain
        else:
            of_G, of_squares, of_plain = G @ stray, G**2 @ stray, G**2 @ plain
        anywhere = self._square * stray.sum() - 2.0 * self._mean * of_G + of_squares
        return np.asarray(own - of_plain + anywhere)


def reference_noise(on: Operator, of: Linear, weights: Floats) -> Floats:
    """The variance of each estimate from the reference, if label l counts `weights_l` times."""
    return np.maximum(_Noise(on, of).of(weights, of.K**2), 0.0)


# What is left of the bias of an unbiased estimate is rounding.
ROUNDING = 1e-6


def _range(G: Floats, where: Bools, truth: float) -> tuple[Floats, Floats]:
    """The least and the largest of each row, among some; `truth` where they are next to it."""
    low = np.min(G, axis=1, where=where, initial=np.inf)
    high = np.max(G, axis=1, where=where, initial=-np.inf)
    exact = (np.maximum(high - truth, truth - low) < ROUNDING) | (low > high)
    return np.where(exact, truth, low), np.where(exact, truth, high)


def shares(
    at: Design,
    estimate: Estimate,
    groups: Floats | None = None,
    *,
    level: float = 0.95,
    simultaneous: bool = False,
) -> Intervals:
    """The interval of each label's share, or of each group's.

    Of several ridges each share takes the one whose interval is expected to be shortest.
    `simultaneous` intervals of labels hold for all at once (Bonferroni).

    >>> from app.stats import cells
    >>> N = np.array([[180, 30, 10], [15, 150, 60], [5, 20, 130]])
    >>> on = estimator.prepare(cells.of_confusion(N, np.arange(3)))
    >>> found = estimator.estimate(on, np.array([90.0, 200.0, 210.0]))
    >>> intervals = shares(design(on, found), found)
    >>> intervals.lower.round(4).tolist(), intervals.upper.round(4).tolist()
    ([0.0694, 0.1568, 0.4976], [0.1748, 0.3984, 0.7166])
    """
    wanted = 1.0 - (1.0 - level) / at.on.size if simultaneous else level
    q = estimate.q if groups is None else groups @ estimate.q
    if groups is None and two_labels.apply_to(at.on):
        lower, upper, vacuous = two_labels.intervals(at.on, estimate, wanted)
        return Intervals(np.minimum(lower, q), np.maximum(upper, q), vacuous)
    lower, upper, vacuous = np.zeros(len(q)), np.ones(len(q)), np.ones(len(q), dtype=np.bool_)
    for of, terms_, rows in _chosen(at, groups, level):
        found = _inverted(terms_, of.K @ estimate.mu, wanted)
        lower[rows], upper[rows] = found.lower[rows], found.upper[rows]
        vacuous[rows] = found.vacuous[rows]
    return Intervals(np.minimum(lower, q), np.maximum(upper, q), vacuous)


def expected_half_lengths(at: Design, groups: Floats | None = None, level: float = 0.95) -> Floats:
    """How long the interval of each share is expected to be, on either side; .5 if vacuous."""
    halves = np.zeros(at.on.size if groups is None else len(groups))
    for _, terms_, rows in _chosen(at, groups, level):
        halves[rows] = np.where(_useless(terms_, level), 0.5, terms_.half_length(level))[rows]
    return np.minimum(halves, 0.5)


def unbiased_estimates(at: Design, estimate: Estimate) -> tuple[Floats, Floats]:
    """The estimates of labels that are identified, which may be negative, and their errors."""
    return (at.unbiased.K @ estimate.mu)[at.exact], at.alone.sd[at.exact]


def reference_share(at: Design) -> float:
    """The part of the estimates' variance that is the reference's own noise.

    Above a half a longer window hardly helps: more labelled records would.
    """
    of, q = at.unbiased, at.q
    reference = float(reference_noise(at.on, of, q**2).sum())
    mean = q if of.G is None else of.G @ q
    spread = np.maximum(of.K**2 @ (at.on.A @ q) - mean**2, 0.0)
    total = reference + float(spread.sum()) / at.m
    return reference / total if total > 0.0 else 1.0


def _chosen(at: Design, groups: Floats | None, level: float) -> list[tuple[Linear, Terms, Bools]]:
    """The linear estimates to use, and for which shares each."""
    choices = at.of_labels if groups is None else _of_groups(at, groups)
    if len(choices) == 1:
        of, terms_ = choices[0]
        return [(of, terms_, np.ones(len(terms_.sd), dtype=np.bool_))]
    halves = np.stack([terms_.half_length(level) for _, terms_ in choices])
    halves[1:] /= WORTH_A_RIDGE
    best = halves.argmin(axis=0)
    return [
        (of, terms_, best == place)
        for place, (of, terms_) in enumerate(choices)
        if (best == place).any()
    ]


def _of_groups(at: Design, groups: Floats) -> list[tuple[Linear, Terms]]:
    summed = [Linear(groups @ of.K, None) for of, _ in at.of_labels]
    return [(of, group_terms(at, of, groups)) for of in summed]


def _inverted(of: Terms, raw: Floats, level: float) -> Intervals:
    """Every t whose estimate would not be surprised by `raw`, at the worst bias on either side."""
    z = of.arm(level)
    lower, none = _root(of, raw, z, of.in_high, of.out_high, upper=False)
    upper, none_either = _root(of, raw, z, of.in_low, of.out_low, upper=True)
    vacuous = none | none_either | _useless(of, level)
    return Intervals(
        np.where(vacuous, 0.0, np.clip(lower, 0.0, 1.0)),
        np.where(vacuous, 1.0, np.clip(upper, 0.0, 1.0)),
        vacuous,
    )


def _useless(of: Terms, level: float) -> Bools:
    gain = np.minimum(of.in_high - of.out_high, of.in_low - of.out_low)
    return np.asarray((gain < LEAST_GAIN) | (of.half_length(level) >= 1.0))


def _root(
    of: Terms, raw: Floats, z: Floats, inside: Floats, outside: Floats, *, upper: bool
) -> tuple[Floats, Bools]:
    """The larger or smaller `t` with `(raw - t in - (1 - t) out)^2 = z^2 sd(t)^2`, if it exists."""
    away, gain = raw - outside, inside - outside
    a2 = gain**2 - z**2 * of.c2
    a1 = -2.0 * away * gain - z**2 * of.c1
    a0 = away**2 - z**2 * of.c0
    discriminant = a1**2 - 4.0 * a2 * a0
    # Much bias and a low level leave no noise to speak of, and both roots are next to equal.
    none = (a2 <= 0.0) | (discriminant < -ROUNDING * a1**2)
    root = np.sqrt(np.maximum(discriminant, 0.0))
    return (-a1 + (root if upper else -root)) / (2.0 * np.where(none, 1.0, a2)), none


def arm(bias: Floats, sd: Floats, level: float) -> Floats:
    """How many standard deviations beyond the worst bias an interval must reach.

    `F(b / sd) - b / sd` with `F` the quantile of the folded normal distribution,
    `P(|Z + x| <= F(x)) = level`: the two-sided normal quantile without bias, the one-sided one with
    much of it.

    >>> arm(np.array([0.0, 1.5]), np.array([1.0, 0.5]), 0.95).round(3).tolist()
    [1.96, 1.645]
    """
    two_sided = quantile(level)
    if not bias.any():
        return np.full(len(bias), two_sided)
    x = bias / sd
    one_sided = float(ndtri(level))
    z = one_sided + (two_sided - one_sided) * np.exp(-2.2 * x)
    for _ in range(3):  # leaves 1e-7
        # Newton's method on the distribution function at x + z.
        held = ndtr(z) - ndtr(-2.0 * x - z)
        slope = (np.exp(-(z**2) / 2.0) + np.exp(-((2.0 * x + z) ** 2) / 2.0)) / np.sqrt(2.0 * np.pi)
        z = z + (level - held) / slope
    return np.asarray(z)


def quantile(level: float, of: int = 1) -> float:
    """The normal quantile for two-sided intervals, `of` of which hold together (Bonferroni)."""
    return float(-ndtri((1.0 - level) / (2.0 * of)))


def wilson(p: Floats, n: Floats | float, z: float) -> tuple[Floats, Floats]:
    """The ends of Wilson's interval of a share `p` of `n` records.

    >>> [round(float(end), 3) for end in wilson(np.array(0.9), 100, 1.96)]
    [0.826, 0.945]
    """
    centre = (p + z**2 / (2.0 * n)) / (1.0 + z**2 / n)
    half = z * np.sqrt((p * (1.0 - p) + z**2 / (4.0 * n)) / n) / (1.0 + z**2 / n)
    # Rounding must not lead out of [0, 1].
    lower, upper = np.minimum(centre - half, p), np.maximum(centre + half, p)
    return np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0)


def memberships(size: int, groups: Sequence[Sequence[int]] | Sequence[Counts]) -> Floats:
    """A row for each group, with one for each label in it.

    >>> memberships(3, [(0, 2)]).tolist()
    [[1.0, 0.0, 1.0]]
    """
    rows = np.zeros((len(groups), size))
    for row, group in zip(rows, groups, strict=True):
        row[list(group)] = 1.0
    return rows
