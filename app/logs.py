"""Logging: one line per event, with fields, to standard error.

Our lines and those of libraries take the same way: structlog hands ours to the standard library's
logging, and one formatter writes all of them. What a line is about besides its own fields (the
request, the model, the trace) is in context variables, so nobody below has to pass it on.
"""

import json
import logging
import sys
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO

import structlog
from structlog.contextvars import get_contextvars
from structlog.processors import format_exc_info
from structlog.stdlib import BoundLogger, LoggerFactory, ProcessorFormatter, filter_by_level
from structlog.typing import EventDict

Format = Literal["auto", "json", "text"]

# The ASGI scope of the request that is being served. To set it is all that a request pays; what a
# line wants to know of it is looked up when there is a line.
request: ContextVar[Mapping[str, Any] | None] = ContextVar("request", default=None)

structlog.configure(
    processors=[filter_by_level, ProcessorFormatter.wrap_for_formatter],
    wrapper_class=BoundLogger,
    logger_factory=LoggerFactory(),
    cache_logger_on_first_use=True,
)


def logger(name: str) -> BoundLogger:
    found: BoundLogger = structlog.stdlib.get_logger(name)
    return found


def configure(level: str, format: Format = "auto") -> None:
    logging.basicConfig(level=level.upper(), handlers=[handler(format)])
    logging.captureWarnings(True)
    # Alembic tells of every look at the schema.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    sys.excepthook = _crashed
    threading.excepthook = _thread_died


def handler(format: Format, stream: TextIO | None = None) -> logging.Handler:
    """Writes lines to `stream`, or to standard error."""
    lines = logging.StreamHandler(stream)
    if format == "auto":
        format = "text" if lines.stream.isatty() else "json"
    render = _text if format == "text" else _json
    lines.setFormatter(ProcessorFormatter(processors=[format_exc_info, _arranged, render]))
    return lines


def _crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        logger(__name__).critical("crashed", exc_info=(kind, error, trace))


def _thread_died(died: threading.ExceptHookArgs) -> None:
    thread = died.thread.name if died.thread else None
    error = died.exc_value
    logger(__name__).critical("thread died", thread=thread, exc_info=error)


# Of an event on its way, but no fields of it.
_PARTS = frozenset({"_record", "_from_structlog", "exc_info"})
_BELOW = ("exception", "stack_info")


def _arranged(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """What every line has, then its own fields, then what it is about, then the traceback."""
    record: logging.LogRecord = event["_record"]
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    own = {name: value for name, value in event.items() if name not in _PARTS}
    below = {name: own.pop(name) for name in _BELOW if name in own}
    head = {
        "timestamp": at.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": event["event"],
    }
    about = {**_of_request(), **dict(sorted(get_contextvars().items()))}
    # A name stands where it is first mentioned, with the value that is last mentioned.
    return {**head, **own, **about, **own, **head, **below}


def _of_request() -> dict[str, Any]:
    scope = request.get()
    if scope is None:
        return {}
    found = {
        "request_id": scope.get("request_id"),
        "model": scope.get("path_params", {}).get("model"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _json(_logger: Any, _method: str, line: EventDict) -> str:
    return "{" + ", ".join(f"{_value(name)}: {_value(line[name])}" for name in line) + "}"


def _value(value: Any) -> str:
    try:
        text = json.dumps(value, default=str, allow_nan=False)
    except (TypeError, ValueError):
        # A number or a key that JSON does not have: better as a string than not at all.
        text = json.dumps(str(value))
    # The one control character that JSON leaves as it is.
    return text.replace("\x7f", "\\u007f")


def _text(_logger: Any, _method: str, line: EventDict) -> str:
    """For people; what comes from outside can neither begin a line nor steer the terminal."""
    head = [str(line.pop(name)) for name in ("timestamp", "level", "logger", "event")]
    below = [line.pop(name) for name in _BELOW if name in line]
    fields = [f"{name}={_shown(value)}" for name, value in line.items()]
    indented = ["    " + _printable(one) for part in below for one in str(part).split("\n")]
    return "\n".join([" ".join([*map(_printable, head), *fields]), *indented])


def _shown(value: Any) -> str:
    """As it is, if it is one word; else as JSON has it."""
    if not isinstance(value, str) or not value.isprintable():
        return _value(value)
    is_word = value != "" and not set(value) & set(' "=')
    return value if is_word else json.dumps(value, ensure_ascii=False)


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else _value(one)[1:-1] for one in text)
