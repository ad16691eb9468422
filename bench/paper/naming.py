"""What curves are called, the same in every figure and table."""

from tests import fashion

CLASSIFIERS: tuple[fashion.Classifier, ...] = ("good", "weak")

TESTS = {
    "oracle": "oracle (true labels)",
    "combined": "soft: combined",
    "chi2": "hard: chi-square",
    "ks": "hard: KS (paper)",
}

TWEAK, DIRICHLET = "tweak-one", "dirichlet"

CORRECTIONS = {
    "plain": "as is",
    "calibrated": "calibrated only",
    "paper": "by BBSE-hard (paper)",
    "always": "by the default",
    "shrunken": "by the default, shrunken",
    "oracle": "by true weights",
}

OURS, BUDGET = "Shiftwatch", "budget: one a month"
ALPHAS = (0.05, 0.001, 1e-5)
RULES = {alpha: f"p < {alpha:g} on the last hour" for alpha in ALPHAS}
