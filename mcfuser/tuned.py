"""Tuned kernels: what was found for a chain on a device, and where it is kept."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from mcfuser.chain import Chain, from_json, to_json
from mcfuser.device import Device
from mcfuser.errors import InputError
from mcfuser.space.expression import parse, rename
from mcfuser.space.plan import Plan
from mcfuser.space.prune import Kind, space
from mcfuser.space.schedule import Schedule

CODE = "6"
"""Raised whenever generated code changes, so that kernels cached before are not taken for new."""

Progress = Callable[[str, int, int], None]
"""Told the stage, the candidates done and those in all."""


@dataclass(frozen=True, slots=True)
class Options:
    """`trials` bounds the measurements of one chain, `timeout` (seconds) the whole run. Without
    `shifts` no sum is multiplied out (algebra.hoist); tuning falls back to that by itself."""

    seed: int = 0
    trials: int | None = None
    timeout: float = 60.0
    space: Kind = "mcfuser"
    shifts: bool = True


@dataclass(frozen=True)
class Tuned:
    """The best kernel found for a chain on a device. Times are seconds.

    `measured` is None where the device is not at hand and the model alone chose; `conditions` tell
    a GPU's clocks, what held them down, and who else used it while it was timed. `stages` counts
    candidates after each rule; `failed` counts those that were not legal, by reason. `split` names
    the axis whose loop goes to `parts`.
    """

    key: str
    chain: Chain
    device: str
    expression: str
    tiles: Mapping[str, int]
    lowering: Mapping[str, Any]
    source: str
    binary: bytes
    predicted: float
    measured: float | None
    error: float | None
    stages: Mapping[str, int]
    trials: int
    space: Kind = "mcfuser"
    shifts: bool = True
    split: str | None = None
    parts: int = 1
    failed: Mapping[str, int] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Measured, or what the model predicts where nothing was."""
        return self.measured if self.measured is not None else self.predicted

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        document["chain"] = to_json(self.chain)
        document["binary"] = base64.b64encode(self.binary).decode()
        return document

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Tuned:
        """Raises KeyError, TypeError or ValueError where the document is of another version."""
        fields = dict(document)
        fields["chain"] = from_json(fields["chain"])
        fields["binary"] = base64.b64decode(fields["binary"])
        return Tuned(**fields)


class Cache(Protocol):
    """Where tuned kernels are kept: `db.Store`, or a dictionary in memory."""

    def get(self, key: str) -> Tuned | None: ...

    def put(self, tuned: Tuned) -> None: ...


@dataclass
class MemoryCache:
    """A cache that ends with the process."""

    kept: dict[str, Tuned] = field(default_factory=dict)

    def get(self, key: str) -> Tuned | None:
        return self.kept.get(key)

    def put(self, tuned: Tuned) -> None:
        self.kept[tuned.key] = tuned


class NoCandidate(InputError):
    """Every candidate of a chain failed; the message counts the reasons."""


def tuned_key(chain: Chain, device: Device, options: Options) -> str:
    """Equal for chains that differ in names only, on equal devices, under the same code."""
    words = "\n".join((chain.key, device.key, CODE, options.space, str(options.shifts)))
    return hashlib.sha256(words.encode()).hexdigest()


def kernel_name(key: str) -> str:
    """The symbol of a GPU kernel: a module finds its kernels by name, so the key is in it."""
    return f"kernel_{key[:16]}"


def plan_of(tuned: Tuned, chain: Chain) -> tuple[Plan, dict[str, int]]:
    """The plan and tiles that a tuned kernel stands for, for a chain equal but for its names."""
    names = {a.name: b.name for a, b in zip(tuned.chain.axes, chain.axes, strict=True)}
    expression = rename(parse(tuned.expression), names)
    tiles = {names[a]: n for a, n in tuned.tiles.items()}
    whole = space(chain, tuned.space, tuned.shifts)
    split = names[tuned.split] if tuned.split is not None else None
    return Plan(whole.program, expression, whole.dead(tiles), split, tuned.parts), tiles


def realise(tuned: Tuned, chain: Chain) -> Schedule:
    """The schedule of `plan_of`."""
    plan, tiles = plan_of(tuned, chain)
    return plan.schedule(tiles)
