"""Kernels as lines of JSON, for other machines: what a search found, without source or binary.

The first line names the format. Each other line is a tuning record: a chain, a device, a schedule,
and what the search was given. A reader trusts none of it: the schedule must be one of those that it
would search itself, and the kernel is generated, built and checked anew (mcfuser.tune.rebuild).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, BinaryIO, get_args

from mcfuser.chain import BYTES, Chain, Tensor, flat_size, flops, from_json
from mcfuser.devices.catalogue import names
from mcfuser.errors import InputError
from mcfuser.space.prune import SpaceKind
from mcfuser.tune import record
from mcfuser.tune.budget import Budget, StopReason
from mcfuser.tune.key import CacheKey
from mcfuser.tune.tried import Tried, schedule

VERSION = 1
"""The version of the format; files of others are not read."""
NAME = "mcfuser-kernels"
LONGEST_LINE = 1 << 18
"""Bytes of a line; a record has a few thousand."""
MOST_LINES = 1_000_000
"""Lines of a file that are read."""
MOST_OPERATORS, MOST_AXES = 64, 16
MOST_BYTES, MOST_FLOPS = 1 << 32, 1e13
"""Of a chain: what checking its kernel takes here."""

_FIELDS = (
    "chain", "device", "expression", "tiles", "split", "parts", "lowering", "space", "shifts",
    "made", "budget", "trials", "measured",
)  # fmt: skip


class RecordError(InputError):
    """A line is no tuning record that is read here. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """What a search has found: a schedule of a chain on the device of that name, and its seconds.

    `made` is the cache key under which it was found; `budget` and `trials` are its search's.
    """

    chain: Chain
    device: str
    schedule: Tried
    space: SpaceKind
    made: CacheKey
    budget: Budget
    trials: int

    @property
    def seconds(self) -> float | None:
        return self.schedule.seconds


def header() -> str:
    """The first line of a file, without its end."""
    return json.dumps({"format": NAME, "version": VERSION})


def check_header(line: bytes) -> None:
    """Raises RecordError where a first line is not `header`."""
    try:
        document = json.loads(line) if len(line) <= LONGEST_LINE else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("format") != NAME:
        raise RecordError(
            "it is no file of kernels: its first line does not say so; write one with "
            "mcfuser cache export"
        )
    if document.get("version") != VERSION:
        version = str(document.get("version"))[:20]
        raise RecordError(
            f"it has version {version} of the format, and {VERSION} is read here; export it again "
            "with the mcfuser that reads it"
        )


def line_of(document: Mapping[str, Any]) -> str | None:
    """The line, without its end, for a kernel's document (Tuned.to_json); None where the document
    has no cache key, so that nobody could look it up."""
    if document.get("made") is None:
        return None
    return json.dumps({name: document[name] for name in _FIELDS})


def read_line(line: bytes) -> TuningRecord:
    """The record of a line. Raises RecordError with the reason where the line is of another form,
    or its chain is larger than what is checked here."""
    if len(line) > LONGEST_LINE:
        raise RecordError(f"the line has more than {LONGEST_LINE} bytes")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise RecordError("the line is no JSON") from None
    if not isinstance(document, dict) or set(document) != set(_FIELDS):
        raise RecordError(f"the line is no object with the fields {', '.join(_FIELDS)}")
    try:
        return _read(document)
    except RecordError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
        words = str(error) if isinstance(error, (InputError, ValueError)) else repr(error)
        raise RecordError(f"the record is not of the documented form: {words[:300]}") from None


def _read(document: Mapping[str, Any]) -> TuningRecord:
    chain, made = from_json(document["chain"]), CacheKey.from_json(document["made"])
    _check_size(chain)
    if not all(isinstance(v, str) for v in (made.device, made.space, made.knobs, made.sources)):
        raise RecordError("its cache key is not one")
    if made.chain != chain.key:
        raise RecordError("its cache key is another chain's")
    if document["device"] not in names():
        raise RecordError(f"device '{str(document['device'])[:100]}' is not known")
    if document["space"] not in get_args(SpaceKind) or made.space != document["space"]:
        raise RecordError("its space is not known")
    if type(document["shifts"]) is not bool or type(made.shifts) is not bool:
        raise RecordError("its shifts are neither true nor false")
    record.check({**document, "key": made.digest})
    return TuningRecord(
        chain, document["device"], _schedule(document, chain), document["space"], made,
        _budget(document["budget"]), _count(document["trials"]),
    )  # fmt: skip


def _taken(chain: Chain, t: Tensor) -> int:
    """The bytes that a check of the chain takes for a tensor: its array, or all its positions."""
    positions = math.prod(chain.shape(t.name))
    return max(positions, flat_size(chain, t.name)) * BYTES[t.dtype]


def _check_size(chain: Chain) -> None:
    if len(chain.operators) > MOST_OPERATORS or len(chain.axes) > MOST_AXES:
        raise RecordError(f"its chain has more than {MOST_OPERATORS} operators or {MOST_AXES} axes")
    if sum(_taken(chain, t) for t in chain.tensors) > MOST_BYTES or flops(chain) > MOST_FLOPS:
        raise RecordError(
            f"its chain has more than {MOST_BYTES >> 30} GiB of tensors or {MOST_FLOPS:.0e} "
            "operations"
        )


def _schedule(document: Mapping[str, Any], chain: Chain) -> Tried:
    seconds = document["measured"]
    if seconds is not None and not (type(seconds) is float and 0 < seconds < math.inf):
        raise RecordError("its measured time is none")
    return schedule(
        chain, document["expression"], document["tiles"], document["split"], document["parts"],
        document["shifts"], document["lowering"], seconds,
    )  # fmt: skip


def _budget(document: Mapping[str, Any]) -> Budget:
    trials, seconds, ended = document["trials"], document["seconds"], document["ended"]
    if trials is not None:
        _count(trials)
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        raise RecordError("its budget's time is none")
    if ended not in get_args(StopReason):
        raise RecordError("how its search ended is not known")
    return Budget(trials, float(seconds), ended)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= 10**9:
        raise RecordError("its number of trials is none")
    return value


def lines_of(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of a file after its header, with their numbers, which count from 1; blank lines are
    left out, and of a line that is too long the first LONGEST_LINE + 1 bytes are given.

    Raises RecordError where the header is not one that is read here, or there are more than
    MOST_LINES lines.
    """
    check_header(_line(file))
    for number in count(2):
        line = _line(file)
        if not line:
            return
        if number > MOST_LINES:
            raise RecordError(f"it has more than {MOST_LINES:,} lines; export it in parts")
        if line.strip():
            yield number, line


def _line(file: BinaryIO) -> bytes:
    """The next line; where it is too long, its first LONGEST_LINE + 1 bytes."""
    first = line = file.readline(LONGEST_LINE + 1)
    while len(line) > LONGEST_LINE and not line.endswith(b"\n"):
        line = file.readline(LONGEST_LINE + 1)
    return first
