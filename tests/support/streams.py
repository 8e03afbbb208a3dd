"""Server-sent events of jobs, as a client reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StreamedEvent:
    """An event of a job; `id` is None where it has none."""

    kind: str
    id: int | None
    data: dict[str, Any]


def read_stream(lines: Iterator[str], comments: list[str] | None = None) -> Iterator[StreamedEvent]:
    """The events of a stream, until it ends."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            (comments if comments is not None else []).append(line)
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            id = int(fields["id"]) if "id" in fields else None
            yield StreamedEvent(fields["event"], id, json.loads(fields["data"]))
            fields = {}
