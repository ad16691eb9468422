"""QuaPy's estimates. Runs in an environment of its own that has QuaPy and not this project.

Reads the path of a file with a draw from each line of its input, writes the estimates into the file
beside it and says where. Softmax rows are what QuaPy's quantifiers get as inputs of a classifier
that hands them back.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from quapy.method.aggregative import ACC, EMQ, PACC, DMy
from sklearn.base import BaseEstimator


class Rows(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier whose input is its output."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.classes_ = np.arange(k)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, *_: Any) -> "Rows":
        return self

    def predict(self, rows: Any) -> Any:
        return rows.argmax(axis=1)

    def predict_proba(self, rows: Any) -> Any:
        return rows


def expectation_maximisation(calibration: str) -> Callable[..., Any]:
    def made(*given: Any) -> Any:
        return EMQ(*given, exact_train_prev=False, calib=calibration)

    return made


# Settings are QuaPy's defaults, which are simplex least squares for ACC and PACC. Its EM with
# calibration estimates the reference's mix from the calibrated rows, as QuaPy's `EMQ_BCTS` does.
METHODS: dict[str, Callable[..., Any]] = {
    "EM BCTS": expectation_maximisation("bcts"),
    "EM VS": expectation_maximisation("vs"),
    "PACC": PACC,
    "DMy": DMy,
    "ACC": ACC,
}


def answered(path: Path) -> Path:
    with np.load(path) as draw:
        reference, windows = (draw["rows"], draw["labels"]), draw["windows"]
        parts = np.split(windows, np.cumsum(draw["sizes"])[:-1])
    found = {name: estimates(method, reference, parts) for name, method in METHODS.items()}
    answer = path.with_name(f"answer-{path.name}")
    np.savez(answer, **found)
    return answer


def estimates(method: Callable[..., Any], reference: tuple[Any, Any], windows: list[Any]) -> Any:
    """A row for each window."""
    quantifier = method(Rows(reference[0].shape[1]), False, reference)
    quantifier.fit(*reference)
    return np.stack([quantifier.predict(window) for window in windows])


def main() -> None:
    # Its search for a temperature tries zero, and goes on from elsewhere.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="abstention")
    for line in sys.stdin:
        print(answered(Path(line.strip())), flush=True)


if __name__ == "__main__":
    main()
