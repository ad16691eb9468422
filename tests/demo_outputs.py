"""Makes `app/demo/fashion.npz` from the outputs that the tests use: `python -m tests.demo_outputs`.

The first rows of each part, as they are stored; nothing is selected and nothing rounded again.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests import fashion, fashion_corrupted

PLACE = Path(__file__).parents[1] / "app/demo/fashion.npz"
ROWS = 10_000


def selected() -> dict[str, NDArray[np.uint8]]:
    """`reference` is held out, `clean` and `noisy` are of the same other pictures."""
    with np.load(fashion.DATA) as whole, np.load(fashion_corrupted.DATA) as corrupted:
        found = {
            "reference_labels": whole["validation_labels"][:ROWS],
            "traffic_labels": whole["test_labels"][:ROWS],
        }
        for half in ("high", "low"):
            found |= {
                f"reference_{half}": whole[f"good_validation_{half}"][:, :ROWS],
                f"clean_{half}": whole[f"good_test_{half}"][:, :ROWS],
                f"noisy_{half}": corrupted[f"noisy_{half}"][:, :ROWS],
            }
    return found


if __name__ == "__main__":
    np.savez_compressed(PLACE, allow_pickle=False, **selected())
