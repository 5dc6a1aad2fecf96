"""Logs: one JSON object or one line of text a record, each with the ids of the trace that it belongs to."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

from opentelemetry import trace
from pythonjsonlogger.json import JsonFormatter

#: Logger of the one line that each call leaves.
ACCESS = "keyglance.access"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "trace_id", "span_id"}


class TraceFilter(logging.Filter):
    """Adds `trace_id` and `span_id` of the current span to each record, unless it brings its own."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true."""
        context = trace.get_current_span().get_span_context()
        if context.is_valid and not hasattr(record, "trace_id"):
            record.trace_id = trace.format_trace_id(context.trace_id)
            record.span_id = trace.format_span_id(context.span_id)
        return True


def _rfc3339(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonLines(JsonFormatter):
    """time (RFC 3339, UTC), process, level, logger, message, trace_id, span_id, then the record's extras.

    `process` is this one's name among several of one server, left out where it is empty.
    """

    def __init__(self, process: str = "") -> None:
        super().__init__("%(levelname)s %(name)s %(message)s", rename_fields={"levelname": "level", "name": "logger"})
        self._process = process

    def add_fields(self, log_data: dict[str, object], record: logging.LogRecord, message_dict: dict[str, object]) -> None:
        """Puts the time first."""
        log_data["time"] = _rfc3339(record)
        if self._process:
            log_data["process"] = self._process
        super().add_fields(log_data, record, message_dict)


class TextLines(logging.Formatter):
    """For people: time, level, process if it has a name, logger, message, then `key=value` of the extras."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = f"[{process}] " if process else ""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it where there is one."""
        extras = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.levelno >= logging.WARNING and (trace_id := getattr(record, "trace_id", None)):
            extras["trace_id"] = trace_id
        facts = "".join(f" {key}={_plain(value)}" for key, value in extras.items())
        line = f"{_rfc3339(record)} {record.levelname:<7} {self._process}{record.name}: {record.getMessage()}{facts}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _plain(value: object) -> str:
    # Callers choose some of the values (request ids): no line breaks or terminal controls from them.
    text = str(value)
    return text if text.isprintable() else repr(text)


def configure(log_format: Literal["json", "text"], level: str, out: TextIO = sys.stderr, *, process: str = "") -> logging.Handler:
    """Sends all logs to `out`; replaces the handlers that this function set before. Returns the handler.

    `process` is this one's name where several of one server write to the same place.
    """
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines(process) if log_format == "json" else TextLines(process))
    handler.addFilter(TraceFilter())
    handler.set_name("keyglance")
    root = logging.getLogger()
    for old in [h for h in root.handlers if h.get_name() == "keyglance"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler
