"""How fast batches of each model come in, and what was answered about those that are fast."""

import time
from collections.abc import Hashable

# A person who sends a batch and asks for the estimate wants to see it there; nobody can tell one
# batch from twenty others of the same second.
MANY_BATCHES = 20


class Pace:
    """Batches of each model in the present second and in the last one that had any."""

    def __init__(self) -> None:
        self._seconds: dict[str, tuple[int, int, int]] = {}

    def beat(self, model: str) -> None:
        """Count a batch."""
        second = int(time.monotonic())
        at, present, before = self._seconds.get(model, (second, 0, 0))
        if at == second:
            self._seconds[model] = (at, present + 1, before)
        else:
            self._seconds[model] = (second, 1, present if at == second - 1 else 0)

    def is_fast(self, model: str) -> bool:
        """Whether so many batches come in that a moment more or less makes no difference."""
        at, present, before = self._seconds.get(model, (0, 0, 0))
        return int(time.monotonic()) - at <= 1 and max(present, before) >= MANY_BATCHES


# Of a stream that is fast the worker finds something new once a second.
REMEMBERED_SECONDS = 1.0
MOST_ANSWERS = 1000


class Answers:
    """Answers that are given again for a second, to whoever asks the same."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[float, bytes]] = {}

    def get(self, question: Hashable) -> bytes | None:
        at, answer = self._known.get(question, (float("-inf"), b""))
        return answer if time.monotonic() - at <= REMEMBERED_SECONDS else None

    def remember(self, question: Hashable, answer: bytes) -> None:
        if len(self._known) >= MOST_ANSWERS:
            self._known.clear()
        self._known[question] = (time.monotonic(), answer)
