"""What a batch takes from mcfuser.lock, and what it writes there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mcfuser.batch.outcome import Outcome
from mcfuser.batch.pace import Baseline
from mcfuser.batch.state import file_hash
from mcfuser.batch.zoo import Entry
from mcfuser.lock import EntryPin, Lock, ModelPin, rounded, updated


@dataclass(frozen=True, slots=True)
class Locking:
    """How a batch uses a lock. Where it is `exact`, modules are built as the lock has them; else
    chains are searched, and the lock has the baselines alone. `margin` is the part by which an
    entry may get slower than its baseline; None where the baselines are to be replaced.
    """

    path: Path
    lock: Lock
    exact: bool
    margin: float | None

    def baseline(self, entry: Entry, device: str) -> Baseline | None:
        """The baseline of an entry on a device, by Device.key; None where there is none."""
        pin = self._entry(entry, device)
        if pin is None or pin.seconds is None or self.margin is None:
            return None
        return Baseline(pin.seconds, pin.module, self.margin)

    def identity(self, entry: Entry, device: str) -> str | None:
        """A hash of what an entry is built from; None where it is searched."""
        if not self.exact:
            return None
        there, pin = self.lock.devices.get(device), self._entry(entry, device)
        if there is None:
            return ""
        chains = there.chains if pin is None else {k: there.chains.get(k) for k in pin.chains}
        parts = [
            dict(there.toolchain),
            there.sources,
            {k: c.model_dump(mode="json") if c is not None else None for k, c in chains.items()},
            pin.model_dump(mode="json", include={"buckets"}) if pin is not None else None,
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _entry(self, entry: Entry, device: str) -> EntryPin | None:
        there = self.lock.devices.get(device)
        return there.entries.get(entry.locked_as) if there is not None else None


def relocked(
    lock: Lock, outcomes: Sequence[tuple[Entry, str, Outcome]], folder: Path
) -> tuple[Lock, tuple[str, ...]]:
    """The lock after a batch, and the titles of entries whose reports say nothing of kernels.

    `outcomes` has each entry with its Device.key; `folder` has the entries' folders. What failed or
    was not run stays as it was locked.
    """
    unknown: list[str] = []
    kept: dict[str, set[str]] = {}

    def made() -> Iterator[tuple[str, EntryPin, ModelPin]]:
        for entry, device, outcome in outcomes:
            stays = kept.setdefault(device, set())
            if not outcome.good:
                stays.add(entry.locked_as)
                continue
            model = _decided(folder / entry.folder)
            if model is None or outcome.module is None:
                unknown.append(entry.title)
                stays.add(entry.locked_as)
                continue
            seconds = outcome.mcfuser_seconds
            pin = EntryPin(
                model=_identity(entry),
                module=outcome.module,
                chains=tuple(sorted(model.chains)),
                seconds=rounded(seconds) if seconds else None,
                buckets=model.buckets,
            )
            yield entry.locked_as, pin, model

    known = list(made())
    stay: Mapping[str, frozenset[str]] = {d: frozenset(titles) for d, titles in kept.items()}
    return updated(lock, known, stay), tuple(unknown)


def _identity(entry: Entry) -> str:
    """The SHA-256 of the model; of a server's job, of the job's address."""
    if entry.job is not None:
        return hashlib.sha256(entry.name.encode()).hexdigest()
    return file_hash(entry.model)


def _decided(folder: Path) -> ModelPin | None:
    """What the compilation in a folder has decided; None where its report does not say."""
    try:
        report: Any = json.loads((folder / "report.json").read_bytes())
        return ModelPin.model_validate(report["lock"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError, RecursionError):
        return None
