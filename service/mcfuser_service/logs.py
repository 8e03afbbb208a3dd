"""The log: a line per request and per job, with time, level, logger, message, name=value pairs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


class Lines(logging.Formatter):
    """Formats a record; the values of `extra` follow the message, quoted if they have spaces."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        words = [moment, record.levelname.lower(), record.name, record.getMessage()]
        words += [f"{k}={_value(v)}" for k, v in vars(record).items() if k not in _ORDINARY]
        line = " ".join(words).replace("\n", "\\n").replace("\r", "\\r")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    words = str(value)
    plain = words and all(c.isprintable() and c not in ' "=' for c in words)
    return words if plain else json.dumps(words)


def configure(level: str) -> None:
    """Sends the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # service.http logs requests
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
