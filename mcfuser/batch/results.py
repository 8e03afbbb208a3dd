"""The results of a batch for programs: a JSON document, and JUnit's XML for CI systems."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

from mcfuser.batch.outcome import EntryState
from mcfuser.batch.run import Done
from mcfuser.batch.zoo import printable
from mcfuser.revision import revision

# Characters that XML documents must not hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Batch:
    """The outcomes of all entries of a zoo, in its order.

    `seconds` is the time that the batch took; `interrupted` says that a signal ended it. With
    `devices_required`, each device must be at hand.
    """

    zoo: str
    begun: datetime
    seconds: float
    done: Sequence[Done]
    interrupted: bool = False
    devices_required: bool = False

    @property
    def counts(self) -> dict[EntryState, int]:
        """The number of entries in each state that occurs."""
        return dict(Counter(d.outcome.state for d in self.done))

    @property
    def unchanged(self) -> int:
        return sum(d.unchanged for d in self.done)

    @property
    def status(self) -> int:
        """The exit status. 0: all is well; 1: a model failed, disagreed or got slower; 4: a server
        or a device that is required is not there; 3: some were not run."""
        states = {d.outcome.state for d in self.done}
        if any(d.outcome.bad for d in self.done):
            return 1
        if "unreachable" in states or (self.devices_required and "unchecked" in states):
            return 4
        return 3 if "not run" in states else 0


def as_json(batch: Batch) -> str:
    return json.dumps(as_document(batch), indent=2, allow_nan=False) + "\n"


def as_document(batch: Batch) -> dict[str, Any]:
    """The results as a JSON value; its `status` is the exit status but for signals."""
    return {
        "zoo": batch.zoo,
        "begun": batch.begun.isoformat(timespec="seconds"),
        "seconds": round(batch.seconds, 3),
        "code": revision(),
        "status": batch.status,
        "interrupted": batch.interrupted,
        "counts": batch.counts,
        "unchanged": batch.unchanged,
        "entries": [_entry(d) for d in batch.done],
    }


def _entry(done: Done) -> dict[str, Any]:
    return {
        **done.entry.to_json(),
        "key": done.key,
        "folder": f"entries/{done.entry.folder}",
        "unchanged": done.unchanged,
        **done.outcome.to_json(),
    }


def as_junit(batch: Batch) -> str:
    """JUnit's XML: a suite per device and a case per entry; entries not done now are skipped."""
    root = ElementTree.Element("testsuites", {"name": "mcfuser batch", **_totals(batch.done)})
    for device in dict.fromkeys(d.entry.device for d in batch.done):
        of_device = [d for d in batch.done if d.entry.device == device]
        told = {"name": device, "timestamp": f"{batch.begun:%Y-%m-%dT%H:%M:%S}"}
        suite = ElementTree.SubElement(root, "testsuite", {**told, **_totals(of_device)})
        for done in of_device:
            _case(suite, done)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _totals(done: Sequence[Done]) -> dict[str, str]:
    return {
        "tests": str(len(done)),
        "failures": str(sum(d.outcome.bad for d in done)),
        "errors": "0",
        "skipped": str(sum(skipped(d) is not None for d in done)),
        "time": f"{sum(_spent(d) for d in done):.3f}",
    }


def _case(suite: ElementTree.Element, done: Done) -> None:
    name = " ".join((done.entry.name, *done.entry.variant))
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_xml(done.entry.device),
        name=_xml(name),
        time=f"{_spent(done):.3f}",
    )
    reason = _xml(done.outcome.reason or "")
    why = skipped(done)
    if done.outcome.bad:
        failure = ElementTree.SubElement(case, "failure", type=done.outcome.state, message=reason)
        failure.text = f"{reason}\nlog: entries/{done.entry.folder}/log.txt"
    elif why is not None:
        ElementTree.SubElement(case, "skipped", message=_xml(why))


def skipped(done: Done) -> str | None:
    """Why this batch did not compile and check an entry; None where it did."""
    if done.unchanged:
        return f"unchanged: {done.outcome.reason or 'it passed before'}"
    undone = ("unchecked", "unreachable", "not run")
    return done.outcome.reason if done.outcome.state in undone else None


def _spent(done: Done) -> float:
    """Seconds that this batch spent on an entry."""
    return 0.0 if done.unchanged else done.outcome.seconds


def _xml(words: str) -> str:
    return _NOT_XML.sub("\ufffd", printable(words))
