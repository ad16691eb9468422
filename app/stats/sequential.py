"""Alarms that may be looked at after every pane: the recursion that the three detectors share.

An e-value is a non-negative number whose mean is at most one while the null holds: a bet that
does not win on average. A detector places several bets on each pane, using earlier panes only,
and keeps for each one the Shiryaev-Roberts sum over all possible starts of a change,

    M <- e (1 + M),

so that `M_t - t` is a supermartingale under the null and so is any weighted mean of such sums.
An alarm when the mean reaches `arl` therefore comes after `arl` panes or later on average, and
by pane `T` with probability at most `T / arl`, however often one looks (Shin, Ramdas and
Rinaldo, 2022, "E-detectors"). docs/statistics-sequential.md says what that promises in practice.

A pane may come in parts: what arrives while it is open, and what comes late. The first part `opens`
it and lets a new gambler in; the others are bets of those who are there, `M <- e M`. So `M` grows
by one for each pane at the most, however often one looks, and `arl` keeps counting panes.

All arithmetic is on logarithms. Arrays may carry leading axes, one entry for each of many streams,
except in `State`, which is that of one stream.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import gammaln

from app.stats.moments import Counts, Floats

# Logarithms stay within these, so that a state is always finite and `-LIMIT` stands for zero.
LIMIT = 1e6

# Above this the difference of two log-gammas loses digits and Stirling's series is exact.
STIRLING = 1e5


@dataclass(frozen=True, slots=True)
class Alarm:
    """Raised at pane `at` on evidence that began with pane `onset`, mostly that of bet `bet`."""

    at: int
    onset: int
    bet: int


@dataclass(frozen=True, slots=True)
class State:
    """All that a detector remembers of one stream: what has to be stored between two panes.

    `baseline` and `recent` are what it has learned (a row of `recent` for each memory length);
    `log_m` and `cusum` are the evidence of each bet, and `began` is the mark of the pane with
    which the present run of that bet's evidence began.
    """

    steps: int
    baseline: Floats
    recent: Floats
    log_m: Floats
    cusum: Floats
    began: Counts
    alarm: Alarm | None = None


def fresh(bets: int, baseline: Floats, recent: Floats) -> State:
    """A state without evidence for any of the bets."""
    return State(
        steps=0,
        baseline=baseline,
        recent=recent,
        log_m=np.full(bets, -LIMIT),
        cusum=np.zeros(bets),
        began=np.zeros(bets, dtype=np.int64),
    )


def grown(log_m: Floats, log_e: Floats, *, opens: bool = True) -> Floats:
    """`log M` after one more pane, `log e + log(1 + M)`, or after more of the same one.

    >>> np.exp(grown(np.log([1.0, 3.0]), np.log([2.0, 0.5]))).round(9).tolist()
    [4.0, 2.0]
    >>> np.exp(grown(np.log([1.0, 3.0]), np.log([2.0, 0.5]), opens=False)).round(9).tolist()
    [2.0, 1.5]
    """
    stake = np.logaddexp(0.0, log_m) if opens else log_m
    return np.asarray(np.clip(log_e + stake, -LIMIT, LIMIT))


def log_mean(log_m: Floats, log_weights: Floats) -> Floats:
    """The logarithm of the weighted mean of the sums, which is compared with `log arl`."""
    return np.asarray(np.logaddexp.reduce(log_m + log_weights, axis=-1))


def advance(
    state: State,
    log_e: Floats,
    log_weights: Floats,
    log_arl: float,
    mark: int | None = None,
    *,
    opens: bool = True,
) -> State:
    """The state with one more pane's bets paid out; what was learned is left to the detector.

    `mark` names the pane in an alarm (its start, say); the number of the step if there is none.
    The onset is where the last run of positive log evidence (Page's CUSUM) of the bet that
    weighs most began.

    >>> state = advance(fresh(1, np.zeros(0), np.zeros(0)), np.log([5.0]), np.zeros(1), np.log(5))
    >>> state.alarm
    Alarm(at=0, onset=0, bet=0)
    """
    here = state.steps if mark is None else mark
    log_m = grown(state.log_m, log_e, opens=opens)
    began = np.where(state.cusum > 0, state.began, here)
    alarm = None
    if log_mean(log_m, log_weights) >= log_arl:
        bet = int(np.argmax(log_m + log_weights))
        alarm = Alarm(here, int(began[bet]), bet)
    cusum = np.clip(state.cusum + log_e, 0.0, LIMIT)
    return replace(state, steps=state.steps + 1, log_m=log_m, cusum=cusum, began=began, alarm=alarm)


def half_and_half(dictionary: int, adaptive: int) -> Floats:
    """Log weights of two families of bets that count the same, whatever their sizes.

    >>> np.exp(half_and_half(4, 2)).round(9).tolist()
    [0.125, 0.125, 0.125, 0.125, 0.25, 0.25]
    """
    sizes = np.repeat([dictionary, adaptive], [dictionary, adaptive])
    return np.asarray(-np.log(2.0 * sizes))


def remember(recent: Floats, counts: Floats, half_lives: Floats, *, opens: bool = True) -> Floats:
    """Fading sums of past panes, a row for each half-life in panes; half-life 0 keeps nothing.

    More of the same pane is added without fading what was there.

    >>> remember(np.array([[8.0], [8.0]]), np.array([1.0]), np.array([1.0, 0.0])).tolist()
    [[5.0], [0.0]]
    """
    keeps = half_lives > 0
    fade = np.where(keeps, 0.5 ** (opens / np.where(keeps, half_lives, 1.0)), 0.0)
    return np.asarray(fade[:, None] * recent + keeps[:, None] * counts[..., None, :])


def log_polya(counts: Floats, weights: Floats) -> Floats:
    """Log probability of a sequence with these counts from Polya's urn with these weights.

    The urn's next draw is label `i` with probability `weights[i] / weights.sum()`, and each draw
    adds one to its weight: predictions that share an unknown label mix, which has a Dirichlet
    distribution with these weights.

    >>> float(np.exp(log_polya(np.array([1.0, 1.0]), np.array([1.0, 1.0]))).round(9))
    0.166666667
    """
    parts = log_rising(weights, counts).sum(axis=-1)
    return np.asarray(parts - log_rising(weights.sum(axis=-1), counts.sum(axis=-1)))


def log_rising(x: Floats, c: Floats) -> Floats:
    """`log Gamma(x + c) - log Gamma(x)`, to full precision for large `x` as well.

    >>> float(np.exp(log_rising(np.array(3.0), np.array(2.0))).round(9))
    12.0
    """
    end = x + c
    series = (x - 0.5) * np.log1p(c / x) + c * (np.log(end) - 1.0) + (1.0 / end - 1.0 / x) / 12.0
    return np.asarray(np.where(x > STIRLING, series, gammaln(end) - gammaln(x)))


def to_json(state: State) -> dict[str, Any]:
    """The state in lists and numbers; `from_json` gives back every bit of it.

    Python writes a float with as many digits as it takes to read the same float again.
    """
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in asdict(state).items()
    }


def from_json(stored: Mapping[str, Any]) -> State:
    """The state that `to_json` wrote.

    >>> state = fresh(2, np.array([0.1, 0.2]), np.zeros((3, 2)))
    >>> from_json(to_json(state)).baseline.tolist()
    [0.1, 0.2]
    """
    floats = {name: np.array(stored[name], dtype=np.float64) for name in _FLOATS}
    return State(
        steps=stored["steps"],
        began=np.array(stored["began"], dtype=np.int64),
        alarm=None if stored["alarm"] is None else Alarm(**stored["alarm"]),
        **floats,
    )


_FLOATS = ("baseline", "recent", "log_m", "cusum")
