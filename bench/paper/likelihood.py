"""The most likely label mix behind a window's calibrated softmax rows (MLLS).

Saerens, Latinne and Decaestecker (2002) find it by expectation-maximisation. It is the literature's
best answer where rows can be trusted, and needs every row of the window, which a service that
counts does not keep: no default, but what the default is measured against.
"""

import numpy as np

from app.stats.moments import Floats
from bench.paper import scaling as scalings
from bench.paper.scaling import Scaling

# Stop when the log-likelihood of the window is surely this close to its maximum.
LIKELIHOOD_GAP = 1e-6
MOST_STEPS = 500
LEAST_SHARE = 1e-9


def from_rows(scaling: Scaling, nu: Floats, rows: Floats) -> Floats:
    """The mix behind these rows; `nu` is that of the reference `scaling` was fitted on."""
    present = nu > 0.0
    q = np.zeros(len(nu))
    q[present] = most_likely(scalings.scaled(scaling, rows)[:, present] / nu[present])
    return q


def most_likely(ratios: Floats) -> Floats:
    """The `q` that maximises `sum_i log (ratios q)_i` over the simplex, for at least one row.

    By expectation-maximisation, `q_j <- q_j g_j` with `g_j = mean_i ratios_ij / (ratios q)_i`, each
    step followed by one of Newton's where that is better still. The likelihood is concave and its
    maximum exceeds its value at `q` by at most `m (max g - 1)`, which tells when to stop.
    """
    q = np.full(ratios.shape[1], 1.0 / ratios.shape[1])
    for _ in range(MOST_STEPS):
        gain = _gain(ratios, q)
        if len(ratios) * (gain.max() - 1.0) <= LIKELIHOOD_GAP:
            break
        q = _better(ratios, q * gain)
    return q


def _gain(ratios: Floats, q: Floats) -> Floats:
    """What one step multiplies `q` by: above one where the likelihood asks for more."""
    return np.asarray((1.0 / (ratios @ q)) @ ratios / len(ratios))


def _better(ratios: Floats, q: Floats) -> Floats:
    """`q`, or the first point towards Newton's step from there that is more likely.

    Cutting a long step off at the simplex can spoil it; the part that just reaches the boundary
    is the last resort, and puts one label out of the mix.
    """
    step = _newton(ratios, q)
    least = _log_likelihood(ratios, q)
    inside = (q / np.maximum(-step, np.finfo(np.float64).tiny))[step < 0.0].min(initial=1.0)
    for part in (1.0, 0.3, 0.1, inside):
        far = np.maximum(q + part * step, 0.0)
        far /= far.sum()
        if _log_likelihood(ratios, far) > least:
            return far
    return q


def _newton(ratios: Floats, q: Floats) -> Floats:
    """A Newton step over the labels in the mix and the one that most asks to be; others leave.

    With `R = ratios / (ratios q)` the likelihood less the constraint has gradient `g - 1` and
    Hessian `-R'R / m`.
    """
    gain = _gain(ratios, q)
    free = q > LEAST_SHARE
    free[gain.argmax()] = True
    R = ratios[:, free] / (ratios @ q)[:, None]
    H = R.T @ R / len(R)
    H[np.diag_indices(len(H))] *= 1.0 + 1e-9
    step = -q
    step[free] = np.linalg.solve(H, gain[free] - 1.0)
    return np.maximum(step, np.where(q > 0.0, -np.inf, 0.0))


def _log_likelihood(ratios: Floats, q: Floats) -> float:
    with np.errstate(divide="ignore"):
        return float(np.log(ratios @ q).mean())
