"""What happens to the two models, and when.

A pane lasts a second and stands for a minute: what takes an hour in production takes a minute here,
and nothing else is different.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.demo import outputs
from app.demo.outputs import LABELS, Floats, Outputs, Shipped

SHOP, CAMERA = "fashion-shop", "fashion-camera"
MODELS = (SHOP, CAMERA)
VERSION = "v1"
SHIRT = LABELS.index("shirt")
MANY_SHIRTS = 0.3

# Predictions of each model in a second, and how many batches they come in.
PER_SECOND = 100
BATCHES_PER_SECOND = 4


@dataclass(frozen=True, slots=True)
class Phase:
    """From `begins` on, in seconds; `more_shirts` come to the shop, `noisy` is the camera."""

    begins: float
    title: str
    expect: str
    more_shirts: bool = False
    noisy: bool = False


PHASES = (
    Phase(
        0.0,
        "quiet: both models see what they were tested on",
        "no alarm; the estimated mix lies on the reference",
    ),
    Phase(
        12.0,
        f"{SHOP}: shirts go from 10 % to 30 % of what comes in",
        "an alarm with the verdict label_shift, and q(shirt) near 30 %",
        more_shirts=True,
    ),
    Phase(
        20.0,
        f"{CAMERA}: its pictures get noisy, the goods stay the same",
        "an alarm that ends in not_label_shift: the predicted mix moves, the true one does not",
        more_shirts=True,
        noisy=True,
    ),
    Phase(
        50.0,
        f"{CAMERA}: it is repaired",
        "its alarm resolved; that of the shop stays, as the shirts do",
        more_shirts=True,
    ),
)
# By then the last alarm of the story is over.
TOLD = 75.0


def at(seconds: float) -> Phase:
    """The phase that the story is in."""
    return [phase for phase in PHASES if phase.begins <= seconds][-1]


def following(phase: Phase) -> Phase | None:
    return next((one for one in PHASES if one.begins > phase.begins), None)


def mix(usual: Floats, shirts: float) -> Floats:
    """The usual mix with that share of shirts, at the cost of all others alike."""
    others = usual.copy()
    others[SHIRT] = 0.0
    found = (1.0 - shirts) * others / others.sum()
    found[SHIRT] = shirts
    return np.asarray(found)


def rows(model: str, phase: Phase, shipped: Shipped, size: int, rng: np.random.Generator) -> Floats:
    """The next softmax rows of a model."""
    usual = shipped.reference.mix
    if model == CAMERA:
        pool = shipped.noisy if phase.noisy else shipped.clean
        return outputs.draw(pool, usual, size, rng)
    wanted = mix(usual, MANY_SHIRTS) if phase.more_shirts else usual
    return outputs.draw(shipped.clean, wanted, size, rng)


def settings() -> dict[str, Any]:
    """Of both models: every duration is a sixtieth of what it would be in production."""
    return {
        "labels": LABELS,
        "pane": "PT1S",
        "windows": [
            {"name": "15s", "kind": "sliding", "length": "PT15S"},
            {"name": "2m", "kind": "sliding", "length": "PT2M"},
        ],
        "alarm": {
            # One false alarm in as many panes as there are minutes in a month.
            "false_alarms": {"at_most": 1, "per": "PT12H"},
            # Until then it is pending, and the window has more of the new than of the old.
            "min_duration": "PT5S",
            "clear_panes": 10,
            "renotify": "PT4M",
            "ingest_stopped_after": "PT1M",
            "no_data_after": "PT1M",
            # The rows are drawn one by one, so nothing has to be measured before alarms are armed.
            "overdispersion": 1,
        },
    }


def reference(held_out: Outputs) -> dict[str, Any]:
    return {"probabilities": written(held_out.rows), "actual": held_out.labels.tolist()}


def written(rows: Floats) -> Sequence[Sequence[float]]:
    """As numbers of five digits: rows are taken to sum to one within a thousandth."""
    found: list[list[float]] = rows.round(5).tolist()
    return found
