"""How fast batches of each model come in, as far as this process knows."""

import time

# A person who sends a batch and asks for the estimate wants to see it there; nobody can tell one
# batch from twenty others of the same second.
MANY_BATCHES = 20


class Pace:
    """Batches of each model in the present second and in the last one that had any."""

    def __init__(self) -> None:
        self._seconds: dict[int, tuple[int, int, int]] = {}

    def beat(self, model_id: int) -> None:
        """Count a batch."""
        second = int(time.monotonic())
        at, present, before = self._seconds.get(model_id, (second, 0, 0))
        if at == second:
            self._seconds[model_id] = (at, present + 1, before)
        else:
            self._seconds[model_id] = (second, 1, present if at == second - 1 else 0)

    def is_fast(self, model_id: int) -> bool:
        """Whether so many batches come in that a moment more or less makes no difference."""
        at, present, before = self._seconds.get(model_id, (0, 0, 0))
        return int(time.monotonic()) - at <= 1 and max(present, before) >= MANY_BATCHES
