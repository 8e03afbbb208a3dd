"""The record of a tuned kernel, and the caches that keep such records."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from mcfuser.chain import Chain, from_json, to_json
from mcfuser.device import Device
from mcfuser.errors import InputError
from mcfuser.space.prune import SpaceKind
from mcfuser.tune.budget import Budget
from mcfuser.tune.exchange import TuningRecord
from mcfuser.tune.key import CacheKey
from mcfuser.tune.related import Relative, fastest, nearest
from mcfuser.tune.tried import Tried, latest

FORMAT = 7
"""The version of a kernel's JSON document; documents of other versions are not read."""

CONSTANTS = "constants"
"""Where `conditions` say with which constants the model chose a kernel (Device.constants_key)."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """How chains are tuned.

    `trials` bounds the measurements of one chain, `timeout` (seconds) the whole run. `space` names
    the space that is searched. With `shifts`, sums may be multiplied out (algebra.hoist); tuning
    falls back to a space without where this loses too many digits. With `retune`, kernels that were
    kept before are searched again and replaced.
    """

    seed: int = 0
    trials: int | None = None
    timeout: float = 60.0
    space: SpaceKind = "mcfuser"
    shifts: bool = True
    retune: bool = False


@dataclass(frozen=True)
class Tuned:
    """The best kernel found for a chain on a device. Times are in seconds.

    The candidate is `expression`, `tiles` (by axis), `lowering` (its knobs), and `split`, the axis
    whose loop is split into `parts`, if there is one. `stages` has the number of candidates after
    each pruning rule, `failed` the number of those that failed, by reason.

    `measured` and the relative `error` are None where the model chose and nothing was measured.
    `conditions` describe the device while the kernel was timed (a GPU's clocks, other processes),
    or name the constants with which the model chose it.

    `source` and `binary` are what was measured, and `launch` is how they are called, with the names
    of `chain`. `made` is the cache key and `key` its digest. `budget` has what the search was
    given and why it ended; `missed` says why no kept kernel was used, in one clause. `stale` says
    in one clause what has changed since a kept kernel was made that is used all the same; it is
    said of the use, and not kept.
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
    stale: str = ""

    def chosen_by(self, device: Device) -> bool:
        """Whether the kernel is what the model would still choose by: it was measured, or chosen
        with the constants that the device has now."""
        constants = self.conditions.get(CONSTANTS, "")
        return self.measured is not None or constants == device.constants_key

    @property
    def seconds(self) -> float:
        """The measured time; the predicted one where nothing was measured."""
        return self.measured if self.measured is not None else self.predicted

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        document["chain"] = to_json(self.chain)
        document["binary"] = base64.b64encode(self.binary).decode()
        document["made"] = self.made.to_json() if self.made is not None else None
        document["format"] = FORMAT
        del document["stale"]
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
        if "stale" in fields:
            raise ValueError("it has a field 'stale', which is not kept")
        return Tuned(**fields)


def _checksum(document: Mapping[str, Any]) -> str:
    """The SHA-256 digest of a document without its checksum."""
    # the binary is long: it is hashed as it is, not as JSON
    rest = {name: value for name, value in document.items() if name != "binary"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    digest.update(str(document["binary"]).encode())
    return digest.hexdigest()


class Cache(Protocol):
    """Where tuned kernels are kept: `mcfuser_db.Storage` or, in memory, `MemoryCache`."""

    def get(self, key: str) -> Tuned | None: ...

    def put(self, tuned: Tuned) -> None: ...

    def keys_of(self, chain_key: str) -> Sequence[CacheKey]:
        """The cache keys of all kernels that are kept for a chain, on any device."""
        ...

    def note(self, uses: Iterable[Use]) -> None:
        """Keeps which kernels a compiled model uses, and where."""
        ...

    def tried(self, key: str) -> Sequence[Tried]:
        """The candidates that were measured under a cache key's digest, each with its last result,
        in the order in which they were first measured."""
        ...

    def keep_tried(self, made: CacheKey, chain: Chain, device: str, tried: Sequence[Tried]) -> None:
        """Keeps candidates that were measured for a chain on a device."""
        ...

    def related(self, chain: Chain, device: str) -> Sequence[Relative]:
        """Chains of the same structure that have kernels which were measured on the device with
        that name, the nearest in extents first, with their best candidates."""
        ...

    def offered(self, key: CacheKey) -> TuningRecord | None:
        """The tuning record that others keep under a key that this cache misses; None if there is
        none."""
        ...


@dataclass(frozen=True, slots=True)
class Use:
    """A kernel that a chain of a compiled model uses, or was compared with.

    `chain_key` is the chain's key and `chain` its name in the model; `kernel` is the kernel's key.
    The kernel may compute a piece of the chain, or have been tuned for an equal chain with another
    name.
    """

    chain_key: str
    chain: str
    kernel: str


@dataclass
class MemoryCache:
    """A cache in memory."""

    kept: dict[str, Tuned] = field(default_factory=dict)
    uses: set[Use] = field(default_factory=set)
    candidates: dict[str, list[Tried]] = field(default_factory=dict)

    def get(self, key: str) -> Tuned | None:
        return self.kept.get(key)

    def put(self, tuned: Tuned) -> None:
        self.kept[tuned.key] = tuned

    def keys_of(self, chain_key: str) -> Sequence[CacheKey]:
        kept = [t for t in self.kept.values() if t.chain.key == chain_key]
        return [t.made for t in kept if t.made is not None]

    def note(self, uses: Iterable[Use]) -> None:
        self.uses.update(uses)

    def tried(self, key: str) -> Sequence[Tried]:
        return latest(self.candidates.get(key, ()))

    def keep_tried(self, made: CacheKey, chain: Chain, device: str, tried: Sequence[Tried]) -> None:
        self.candidates.setdefault(made.digest, []).extend(tried)

    def related(self, chain: Chain, device: str) -> Sequence[Relative]:
        measured = {
            t.chain.key: t
            for t in self.kept.values()
            if t.device == device and t.measured is not None
        }
        near = nearest(chain, [t.chain for t in measured.values()])
        found = [Relative(c, fastest(self.tried(measured[c.key].key))) for c in near]
        return [r for r in found if r.best]

    def offered(self, key: CacheKey) -> TuningRecord | None:
        return None


@dataclass
class RetuneCache:
    """A cache in front of another one that hides the kernels and candidates kept there before.

    Kernels are tuned again, once each, and replaced.
    """

    cache: Cache
    since: dict[str, Tuned] = field(default_factory=dict)

    def get(self, key: str) -> Tuned | None:
        return self.since.get(key)

    def put(self, tuned: Tuned) -> None:
        self.since[tuned.key] = tuned
        self.cache.put(tuned)

    def keys_of(self, chain_key: str) -> Sequence[CacheKey]:
        return ()

    def note(self, uses: Iterable[Use]) -> None:
        self.cache.note(uses)

    def tried(self, key: str) -> Sequence[Tried]:
        return ()

    def keep_tried(self, made: CacheKey, chain: Chain, device: str, tried: Sequence[Tried]) -> None:
        self.cache.keep_tried(made, chain, device, tried)

    def related(self, chain: Chain, device: str) -> Sequence[Relative]:
        return ()

    def offered(self, key: CacheKey) -> TuningRecord | None:
        return None


class NoCandidate(InputError):
    """A chain has no kernel: no candidate is legal, or all failed. The message counts the
    reasons."""


def kernel_name(key: str) -> str:
    """The name of a kernel with a key. A module finds kernels by name, so the key is in it."""
    return f"kernel_{key[:16]}"


def names_of(tuned: Tuned, chain: Chain) -> tuple[dict[str, str], dict[str, str]]:
    """The names that `chain` gives to the tensors and to the axes of the tuned chain.

    Raises ValueError where the chains differ in more than names.
    """
    if tuned.chain.key != chain.key:
        raise ValueError(f"a kernel of chain '{tuned.chain.name}' is none of chain '{chain.name}'")
    tensors = zip(tuned.chain.tensors, chain.tensors, strict=True)
    axes = zip(tuned.chain.axes, chain.axes, strict=True)
    return {a.name: b.name for a, b in tensors}, {a.name: b.name for a, b in axes}
