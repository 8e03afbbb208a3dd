"""Tuned kernels: what was found for a chain on a device, and where it is kept."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from mcfuser.chain import Chain, from_json, to_json
from mcfuser.errors import InputError
from mcfuser.space.expression import parse, rename
from mcfuser.space.plan import Plan
from mcfuser.space.prune import SpaceKind, space
from mcfuser.tune.budget import Budget
from mcfuser.tune.key import CacheKey

FORMAT = 7
"""The form of a kernel's document; one of another form is not read."""

Progress = Callable[[str, int, int], None]
"""Told the stage, the candidates done and those in all."""


@dataclass(frozen=True, slots=True)
class Options:
    """`trials` bounds the measurements of one chain, `timeout` (seconds) the whole run. Without
    `shifts` no sum is multiplied out (algebra.hoist); tuning falls back to that by itself. With
    `retune` kernels that were kept before are not used, and are replaced."""

    seed: int = 0
    trials: int | None = None
    timeout: float = 60.0
    space: SpaceKind = "mcfuser"
    shifts: bool = True
    retune: bool = False


@dataclass(frozen=True)
class Tuned:
    """The best kernel found for a chain on a device. Times are seconds.

    `measured` is None where the device is not at hand and the model alone chose; `conditions` tell
    a GPU's clocks, what held them down, and who else used it while it was timed. `stages` counts
    candidates after each rule; `failed` counts those that were not legal, by reason. `split` names
    the axis whose loop goes to `parts`.

    `source` and `binary` are what was measured, and `launch` is how they are called, by the names
    of `chain` (codegen's records). `made` is the cache key, of which `key` is the digest; `budget`
    tells what the search was given and what ended it; `missed` says why no kept kernel served.
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
    space: SpaceKind = "mcfuser"
    shifts: bool = True
    split: str | None = None
    parts: int = 1
    failed: Mapping[str, int] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    launch: Mapping[str, Any] = field(default_factory=dict)
    made: CacheKey | None = None
    budget: Budget = field(default_factory=Budget)
    missed: str = ""

    @property
    def seconds(self) -> float:
        """Measured, or what the model predicts where nothing was."""
        return self.measured if self.measured is not None else self.predicted

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        document["chain"] = to_json(self.chain)
        document["binary"] = base64.b64encode(self.binary).decode()
        document["made"] = self.made.to_json() if self.made is not None else None
        document["format"] = FORMAT
        return document | {"checksum": _checksum(document)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Tuned:
        """Raises KeyError, TypeError or ValueError where the document is of another form, or was
        damaged since it was written."""
        fields = dict(document)
        checksum = fields.pop("checksum")
        if fields["format"] != FORMAT:
            raise ValueError(f"its format is {fields['format']!r}, and {FORMAT} is read here")
        if checksum != _checksum(fields):
            raise ValueError("its checksum does not fit it: it was damaged")
        del fields["format"]
        fields["chain"] = from_json(fields["chain"])
        fields["binary"] = base64.b64decode(fields["binary"])
        fields["made"] = CacheKey.from_json(fields["made"]) if fields["made"] is not None else None
        fields["budget"] = Budget(**fields["budget"])
        return Tuned(**fields)


def _checksum(document: Mapping[str, Any]) -> str:
    """Of a document without its checksum; the binary, which is long, is not quoted first."""
    rest = {name: value for name, value in document.items() if name != "binary"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    digest.update(str(document["binary"]).encode())
    return digest.hexdigest()


class Cache(Protocol):
    """Where tuned kernels are kept: `db.Store`, or a dictionary in memory."""

    def get(self, key: str) -> Tuned | None: ...

    def put(self, tuned: Tuned) -> None: ...

    def alike(self, chain_key: str) -> Sequence[CacheKey]:
        """The keys of what is kept for a chain, under whatever else."""
        ...

    def note(self, uses: Iterable[Use]) -> None:
        """Keeps which kernels a compiled model has in which places."""
        ...


@dataclass(frozen=True, slots=True)
class Use:
    """A chain of a compiled model, by its key and its name there, and the key of a kernel that it
    was given or that was weighed for it: a kernel may be of a piece of the chain, and may have been
    tuned for an equal chain of another name."""

    chain_key: str
    chain: str
    kernel: str


@dataclass
class MemoryCache:
    """A cache that ends with the process."""

    kept: dict[str, Tuned] = field(default_factory=dict)
    uses: set[Use] = field(default_factory=set)

    def get(self, key: str) -> Tuned | None:
        return self.kept.get(key)

    def put(self, tuned: Tuned) -> None:
        self.kept[tuned.key] = tuned

    def alike(self, chain_key: str) -> Sequence[CacheKey]:
        kept = [t for t in self.kept.values() if t.chain.key == chain_key]
        return [t.made for t in kept if t.made is not None]

    def note(self, uses: Iterable[Use]) -> None:
        self.uses.update(uses)


@dataclass
class Anew:
    """A cache that answers with what was put into it since alone: kernels kept before are searched
    again, once, and replaced."""

    cache: Cache
    since: dict[str, Tuned] = field(default_factory=dict)

    def get(self, key: str) -> Tuned | None:
        return self.since.get(key)

    def put(self, tuned: Tuned) -> None:
        self.since[tuned.key] = tuned
        self.cache.put(tuned)

    def alike(self, chain_key: str) -> Sequence[CacheKey]:
        return ()

    def note(self, uses: Iterable[Use]) -> None:
        self.cache.note(uses)


class NoCandidate(InputError):
    """Every candidate of a chain failed; the message counts the reasons."""


def kernel_name(key: str) -> str:
    """The symbol of a GPU kernel: a module finds its kernels by name, so the key is in it."""
    return f"kernel_{key[:16]}"


def names_of(tuned: Tuned, chain: Chain) -> tuple[dict[str, str], dict[str, str]]:
    """What a chain that is equal but for its names calls the tuned chain's tensors and axes.

    Raises ValueError where the chains are not equal.
    """
    if tuned.chain.key != chain.key:
        raise ValueError(f"a kernel of chain '{tuned.chain.name}' is none of chain '{chain.name}'")
    tensors = zip(tuned.chain.tensors, chain.tensors, strict=True)
    axes = zip(tuned.chain.axes, chain.axes, strict=True)
    return {a.name: b.name for a, b in tensors}, {a.name: b.name for a, b in axes}


def plan_of(tuned: Tuned, chain: Chain) -> tuple[Plan, dict[str, int]]:
    """The plan and tiles that a tuned kernel stands for, for a chain equal but for its names."""
    _, names = names_of(tuned, chain)
    expression = rename(parse(tuned.expression), names)
    tiles = {names[a]: n for a, n in tuned.tiles.items()}
    whole = space(chain, tuned.space, tuned.shifts)
    split = names[tuned.split] if tuned.split is not None else None
    return Plan(whole.program, expression, whole.dead(tiles), split, tuned.parts), tiles
