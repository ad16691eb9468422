"""Regularised weights (RLLS; Azizzadenesheli et al., 2019), for comparison.

Shrinking towards `w = 1` by a worst-case amount answers "no shift" to shifts that are plainly
there; the service's default pulls by what the window's own evidence asks for.
"""

import numpy as np
from scipy.optimize import brentq

from app.stats.moments import Floats


def regularised_weights(C: Floats, mu: Floats, strength: float, gamma: float = 1.0) -> Floats:
    """`w = 1 + gamma theta`, `theta = argmin |C theta - b|_2 + strength |theta|_2`, `b = mu - C 1`.

    Neither norm is squared. `theta` is zero iff `|C'b| <= strength |b|`; it solves `C theta = b`
    if even that has `|theta| >= strength |C^-T theta|`; between the two it is the ridge solution
    whose residual r has `|C'r| = strength |r|`.
    """
    b = mu - C.sum(axis=1)
    U, s, Vt = np.linalg.svd(C)
    beta = U.T @ b
    if np.linalg.norm(s * beta) <= strength * np.linalg.norm(beta):
        return np.ones(len(mu))

    def imbalance(log_ridge: float) -> float:
        residual = beta / (s**2 + np.exp(log_ridge))
        return float(np.linalg.norm(s * residual) - strength * np.linalg.norm(residual))

    low, high = np.log(max(s[-1] ** 2, 1e-200)) - 40.0, np.log(s[0] ** 2) + 40.0
    ridge = 0.0 if imbalance(low) >= 0.0 else float(np.exp(brentq(imbalance, low, high)))
    theta = Vt.T @ (s * beta / (s**2 + ridge))
    return np.asarray(1.0 + gamma * theta)
