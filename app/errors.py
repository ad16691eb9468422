"""Everything this service raises on purpose.

AppError
├── Unauthenticated     no key, or one that is not known
├── Forbidden           the key does not cover this
├── NotFound            the thing named in the request does not exist
├── Conflict            it exists already, or changed under the caller
├── Outdated            If-Match named a state that is gone
├── InvalidInput        well-formed but meaningless (an unknown label, a negative count)
├── Malformed           not even well-formed (broken JSON, a bad gzip stream)
├── TooLarge            more than one request may carry
├── UnsupportedMedia    a content type or encoding that nobody here reads
└── Unavailable         we cannot serve now; the caller should retry
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing wrong with a request; `pointer` is a JSON Pointer fragment like `#/predicted/3`."""

    detail: str
    pointer: str | None = None
    parameter: str | None = None


def escaped(name: str) -> str:
    """A name as a part of a JSON Pointer.

    >>> escaped("a/b~c")
    'a~1b~0c'
    """
    return name.replace("~", "~0").replace("/", "~1")


class AppError(Exception):
    """Base class; `str(error)` is safe to show to the caller."""


class Unauthenticated(AppError): ...


class Forbidden(AppError): ...


class NotFound(AppError): ...


class Conflict(AppError): ...


class Outdated(AppError): ...


class InvalidInput(AppError):
    """Says what is wrong, and where, so that the caller can mend it."""

    def __init__(self, detail: str, pointer: str | None = None, *, flaws: Sequence[Flaw] = ()):
        super().__init__(detail)
        self.flaws = tuple(flaws) or ((Flaw(detail, pointer),) if pointer is not None else ())


def wrong_parameter(name: str, detail: str) -> InvalidInput:
    """What is wrong with a query parameter or a header."""
    return InvalidInput(f"{name} {detail}", flaws=[Flaw(detail, parameter=name.lower())])


class Malformed(AppError): ...


class TooLarge(AppError):
    def __init__(self, detail: str, limit: int):
        super().__init__(detail)
        self.limit = limit


class UnsupportedMedia(AppError): ...


class Unavailable(AppError):
    """`retry_after_seconds` is a promise to look again then, not to have room."""

    def __init__(self, detail: str, retry_after_seconds: int = 1):
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds
