"""One reference and the windows that are estimated from it by all."""

from dataclasses import dataclass
from itertools import product

from app.stats.moments import Floats
from bench.paper.experiment import random
from bench.peers.settings import Setting
from tests import fashion
from tests.fashion import Outputs

WINDOW_SIZES = (500, 8000)
CELLS = tuple(product(fashion.SHIFTS, WINDOW_SIZES))


@dataclass(frozen=True, slots=True)
class Window:
    """Outputs whose true labels were drawn from `q`."""

    q: Floats
    outputs: Outputs


@dataclass(frozen=True, slots=True)
class Draw:
    """A reference, and a window for each of `CELLS`."""

    reference: Outputs
    windows: tuple[Window, ...]


def draw(setting: Setting, number: int) -> Draw:
    """The draw of this number: the same however many are drawn, and in whatever order."""
    rng = random("peers", setting.protocol, setting.data, setting.n, number)
    reference = fashion.draw(setting.labelled, setting.mix, setting.n, rng)
    mixes = [(fashion.shifted(shift, rng, setting.k), m) for shift, m in CELLS]
    windows = [Window(q, fashion.draw(setting.stream, q, m, rng)) for q, m in mixes]
    return Draw(reference, tuple(windows))
