"""What was worked out once and is wanted again: the latest of it, up to a size."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """Forgets what was not asked for longest, but never the last thing that was worked out.

    Two that ask for the same at once may both work it out: better than waiting for each other.

    >>> lengths = Remembered[str, int](limit=5, size=lambda length: length)
    >>> [lengths.get(word, lambda: len(word)) for word in ("abc", "ab", "abcd", "ab")]
    [3, 2, 4, 2]
    >>> len(lengths)
    1
    """

    def __init__(self, limit: int, size: Callable[[Value], int]) -> None:
        self._limit = limit
        self._size = size
        self._held: OrderedDict[Key, Value] = OrderedDict()
        self._total = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Key, work_out: Callable[[], Value]) -> Value:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        value = work_out()
        with self._lock:
            if key not in self._held:
                self._held[key] = value
                self._total += self._size(value)
            while self._total > self._limit and len(self._held) > 1:
                _, forgotten = self._held.popitem(last=False)
                self._total -= self._size(forgotten)
        return value
