"""Says what a cache has for a chain on a device, and why it has no kernel where it has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mcfuser.backend import Backend
from mcfuser.backends import backend_of
from mcfuser.device import Device
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import InputError
from mcfuser.space.prune import SpaceKind
from mcfuser.tune.age import Age, age, driver_changed, reasons
from mcfuser.tune.key import CacheKey, differs, driver, key_here
from mcfuser.tune.tuned import Cache, Tuned
from mcfuser.tune.tuner import kernel_of

NEAREST = 3
"""Kept kernels that a miss is compared with."""

Finding = Literal["hit", "stale", "miss"]


AgeHere = tuple[Age, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class NearKernel:
    """A kept kernel of the same chain, its age, and in what its key differs, in clauses."""

    key: str
    device: str
    age: Age
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer of a cache to a key.

    `kernel` is the key of the kernel that is used, None for a miss. `notes` are sentences about it,
    or about what the next search does; `nearest` are kept kernels of the same chain with other
    keys. `candidates` were measured under the key.
    """

    asked: CacheKey
    answer: Finding
    kernel: str | None
    notes: tuple[str, ...]
    nearest: tuple[NearKernel, ...]
    candidates: int

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in words, one sentence each."""
        if self.answer == "miss":
            first = f"miss: no kernel is kept under {self.asked.digest}"
        else:
            first = f"{'hit' if self.answer == 'hit' else 'hit, but stale'}: kernel {self.kernel}"
        near = (f"kernel {n.key} is {n.age}: {'; '.join(n.reasons)}" for n in self.nearest)
        return (first, *self.notes, *near)

    def to_json(self) -> dict[str, Any]:
        return {
            "answer": self.answer,
            "asked": {"key": self.asked.digest, **self.asked.to_json()},
            "kernel": self.kernel,
            "candidates": self.candidates,
            "nearest": [
                {"key": n.key, "device": n.device, "age": n.age, "reasons": list(n.reasons)}
                for n in self.nearest
            ],
            "sentences": list(self.sentences),
        }


@dataclass(frozen=True, slots=True)
class Here:
    """What kernels for a device are made with on this machine: the cache key of such a kernel but
    for its chain, the programs that are soft (Backend.soft), and the driver's version."""

    key: CacheKey
    soft: Mapping[str, int]
    driver: str

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key.to_json(), "soft": dict(self.soft), "driver": self.driver}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Here:
        key = CacheKey.from_json(document["key"])
        return Here(key, document["soft"], document["driver"])


def here(device: Device, backend: Backend, space: SpaceKind, shifts: bool) -> Here:
    """What kernels for a device are made with in this process."""
    return Here(key_here("", device, space, shifts, backend), backend.soft, driver(backend))


def look_up(
    cache: Cache, chain_key: str, here: Here, damage: Callable[[Tuned], str] = lambda kernel: ""
) -> Lookup:
    """What a cache has for the chain with a key on a device; nothing is compiled.

    `damage` says why a kernel cannot be launched, if it cannot.
    """
    asked = replace(here.key, chain=chain_key)
    kept = sorted(cache.keys_of(chain_key), key=lambda k: len(differs(k, asked)))
    near = tuple(
        NearKernel(k.digest, k.device, age(k, asked, here.soft), reasons(k, asked))
        for k in kept
        if k != asked
    )
    tried = len(cache.tried(asked.digest))
    known = cache.get(asked.digest)
    broken = damage(known) if known is not None else ""
    if known is not None and not broken:
        moved = driver_changed(known.conditions.get("driver"), here.driver)
        notes = (*_budget_notes(known), *([f"it is stale: {moved}"] if moved else []))
        answer: Finding = "stale" if moved else "hit"
        return Lookup(asked, answer, known.key, notes, (), tried)
    notes = (f"the kept kernel cannot be read: {broken}",) if broken else ()
    stale = next((n for n in near if n.age == "stale"), None)
    if stale is not None and not broken and cache.get(stale.key) is not None:
        return Lookup(asked, "stale", stale.key, (), near[:NEAREST], tried)
    if not near and not broken:
        notes += ("nothing was ever kept for this chain",)
    if cache.offered(asked) is not None:
        notes += (
            "the team's cache has a kernel, which is built and checked here when it is tuned",
        )
    if tried:
        notes += (f"the next search goes on from {tried} candidates that were measured",)
    return Lookup(asked, "miss", None, notes, near[:NEAREST], tried)


def damage(backend: Backend, known: Tuned) -> str:
    """Why a kept kernel cannot be launched; empty where it can."""
    try:
        kernel_of(backend, known, known.chain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return str(error)
    return ""


@dataclass
class Ages:
    """The ages of kept kernels on this machine, where each kind of key is made once."""

    known: dict[tuple[str, SpaceKind, bool], Here] = field(default_factory=dict)

    def of(
        self, made: CacheKey, device: str, conditions: Callable[[], Mapping[str, Any]]
    ) -> AgeHere:
        """The age of a kernel with the key `made` on the device of that name, with the clauses that
        say why; `conditions` gives those under which it was timed."""
        try:
            now = self._here(device, made)
        except InputError:
            return "outdated", (f"its device '{device}' is not known here",)
        wanted = replace(now.key, chain=made.chain)
        older = age(made, wanted, now.soft)
        if older == "current" and now.driver:
            moved = driver_changed(conditions().get("driver"), now.driver)
            return ("stale", (moved,)) if moved else ("current", ())
        return older, reasons(made, wanted)

    def _here(self, device: str, made: CacheKey) -> Here:
        kind: SpaceKind = "chimera" if made.space == "chimera" else "mcfuser"
        which = device, kind, made.shifts
        if which not in self.known:
            target = device_named(device)
            self.known[which] = here(target, backend_of(target), kind, made.shifts)
        return self.known[which]


def _budget_notes(known: Tuned) -> tuple[str, ...]:
    """What a search with a larger budget would do with a kernel that is kept."""
    if known.measured is None:
        return ("it was never measured: a search on the device replaces it",)
    if known.budget.ended != "settled":
        return (f"its search was {known.budget}: a larger one goes on from it",)
    return ()
