"""The file mcfuser.lock: the kernels of every chain on each device, and what its models took.

A build from a lock (mcfuser.tune.locked) searches nothing: the cover of each chain, and each
kernel's expression, tile sizes and knobs, are the file's. The text is JSON in a fixed order, so
that a change of one kernel is a change of a few lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcfuser.errors import InputError

LARGEST = 64 << 20
"""The largest size of a lock, in bytes."""

_Count = Annotated[int, Field(ge=1, lt=1 << 31)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Pinned(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NamesPin(_Pinned):
    """The names that a kernel's source has: of the chain that it was generated for, and of that
    chain's axes and tensors, in its order."""

    chain: str
    axes: tuple[str, ...]
    tensors: tuple[str, ...]


class KernelPin(_Pinned):
    """A candidate: the tiling expression, tile sizes by axis, the axis that is split into `parts`
    if there is one, and the knobs. `space` and `shifts` name the space that it is from. Axes have
    the names of the locked chain.

    Chains that are equal but for their names share kernels, so a kernel's source may have the
    `names` of another one; without them it has those of the chain that is built.
    """

    expression: Annotated[str, Field(max_length=300)]
    tiles: Mapping[str, _Count]
    split: str | None = None
    parts: _Count = 1
    knobs: Mapping[str, bool | int | str]
    space: Literal["mcfuser", "chimera"] = "mcfuser"
    shifts: bool = True
    names: NamesPin | None = None


class ChainPin(_Pinned):
    """A chain and its cover: how many operators each kernel has, and the kernels. Without a kernel
    the chain is left to TVM.

    `axes` (`m=128 n=64`), `types` (of all tensors) and `operators` describe the chain to people; it
    is found by its key.
    """

    name: str
    axes: str
    types: str
    operators: tuple[str, ...]
    cut: tuple[_Count, ...] = ()
    kernels: tuple[KernelPin, ...] = ()


class BoxPin(_Pinned):
    """The least and the highest run-time extents of a bucket, by name."""

    low: Mapping[str, _Count]
    high: Mapping[str, _Count]


class ModelPin(_Pinned):
    """What one compilation has decided, as its report has it under `lock`.

    `device` is Device.key. `toolchain` and `sources` are those of a cache key: the programs that
    kernels are made with, and the hash of the sources that generate code. `chains` are by key.
    """

    device: str
    toolchain: Mapping[str, str]
    sources: str
    chains: Mapping[str, ChainPin]
    buckets: tuple[BoxPin, ...] | None = None


class EntryPin(_Pinned):
    """An entry of a zoo: the SHA-256 of its model and module, the keys of its chains, its buckets,
    and the seconds of one run, which are the baseline; None where nothing was run."""

    model: str
    module: str
    chains: tuple[str, ...]
    seconds: _Seconds | None
    buckets: tuple[BoxPin, ...] | None = None


class DeviceLock(_Pinned):
    """All that is locked for one device: chains by key, and entries by title."""

    toolchain: Mapping[str, str]
    sources: str
    chains: Mapping[str, ChainPin]
    entries: Mapping[str, EntryPin] = {}


class Lock(_Pinned):
    """What a lock file holds, by Device.key. Files with another version as their `format` are not
    read."""

    format: Literal[1] = 1
    devices: Mapping[str, DeviceLock] = {}

    @property
    def text(self) -> str:
        """The file's text: equal for equal locks."""
        document = {"format": self.format, **self.model_dump(mode="json", exclude_defaults=True)}
        return json.dumps(document, indent=2, sort_keys=True) + "\n"

    def buckets(self, device: str, model: str) -> tuple[BoxPin, ...] | None:
        """The buckets of the model with this SHA-256; None where no entry has any."""
        there = self.devices.get(device)
        found = (e.buckets for e in (there.entries if there else {}).values() if e.model == model)
        return next((b for b in found if b is not None), None)


def read_lock(path: Path) -> Lock:
    """The lock in a file. Raises InputError where it cannot be read or has another form."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(
            f"lock '{path}' cannot be read: {error.strerror}; mcfuser batch ZOO -o FOLDER --lock "
            "FILE --update-lock writes one"
        ) from None
    if len(data) > LARGEST:
        raise InputError(f"lock '{path}' is larger than {LARGEST} bytes")
    try:
        return Lock.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    raise InputError(
        f"lock '{path}' is not of this version's form: {f'{where}: ' if where else ''}"
        f"{first['msg'][:200]}; write it anew with --update-lock"
    )


def updated(
    lock: Lock, made: Iterable[tuple[str, EntryPin, ModelPin]], kept: Mapping[str, frozenset[str]]
) -> Lock:
    """The lock after a batch, whose entries are given by title with their compilations.

    A device's entries are those that were `made`, and of the earlier ones those whose titles are in
    `kept`, by device: what failed this time stays locked. Devices that are in neither stay as they
    are. A chain that several entries have is locked as the first of them has it. What was locked
    under other compilers or code is dropped from a device with new entries.
    """
    devices = dict(lock.devices)
    chains: dict[str, dict[str, ChainPin]] = {}
    entries: dict[str, dict[str, EntryPin]] = {}
    by: dict[str, ModelPin] = {}
    for title, entry, model in made:
        by.setdefault(model.device, model)
        entries.setdefault(model.device, {})[title] = entry
        known = chains.setdefault(model.device, {})
        known |= {key: pin for key, pin in model.chains.items() if key not in known}
    for device in {*by, *(d for d in kept if d in devices)}:
        before = devices.get(device)
        same = before is not None and (
            device not in by or (before.toolchain, before.sources) == _with(by[device])
        )
        if before is not None and same:
            stay = {t: e for t, e in before.entries.items() if t in kept.get(device, ())}
            entries[device] = stay | entries.get(device, {})
            chains[device] = {**before.chains, **chains.get(device, {})}
        toolchain, sources = _with(by[device] if device in by else devices[device])
        used = {key for e in entries.get(device, {}).values() for key in e.chains}
        devices[device] = DeviceLock(
            toolchain=toolchain,
            sources=sources,
            chains={key: pin for key, pin in chains.get(device, {}).items() if key in used},
            entries=entries.get(device, {}),
        )
    return Lock(devices={d: there for d, there in devices.items() if there.entries})


def _with(made: ModelPin | DeviceLock) -> tuple[Mapping[str, str], str]:
    return made.toolchain, made.sources


def rounded(seconds: float) -> float:
    """Seconds with four digits: the others are noise, and lines of a diff."""
    return float(f"{seconds:.4g}")
