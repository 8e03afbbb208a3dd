"""How a chain is made ready for fusion: each dependence between its reductions with what resolves
it, and the loop nests that are left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcfuser.algebra.dependence import Dependence, dependences, through_maps
from mcfuser.algebra.roll import Refusal, Roll
from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.expr import reads, text
from mcfuser.space.program import Program, program
from mcfuser.space.prune import prune, space


@dataclass(frozen=True, slots=True)
class ResolvedDependence:
    """A dependence, and the rolls or refusals for what hoisting left of it: none where it left
    nothing."""

    dependence: Dependence
    rolls: tuple[Roll | Refusal, ...]

    def to_json(self) -> dict[str, Any]:
        d = self.dependence
        ways = [_way(r) for r in self.rolls] or [{"way": "hoist"}]
        return {"target": d.target, "moving": d.moving, "axis": d.axis, "resolved": ways}


@dataclass(frozen=True, slots=True)
class Derivation:
    """A chain, what it is rewritten to, its dependences, and the notations of the loop nests that
    pruning leaves for a device."""

    chain: Chain
    ready: Chain
    dependences: tuple[ResolvedDependence, ...]
    loop_nests: tuple[str, ...]
    device: str

    def to_json(self) -> dict[str, Any]:
        return {
            "chain": self.chain.name,
            "device": self.device,
            "operators": [str(o) for o in self.chain.operators],
            "ready": [str(o) for o in self.ready.operators],
            "dependences": [d.to_json() for d in self.dependences],
            "loop_nests": list(self.loop_nests),
        }


def derive(chain: Chain, tiled: Chain, device: Device) -> Derivation:
    """The derivation of a chain, given the chain as the device's back end tiles it (Backend.tiled).
    Raises InputError where it cannot be fused at all."""
    ready = program(tiled)
    pruned, _ = prune(space(tiled), device)
    nests = dict.fromkeys(plan.notation for plan, _ in pruned.tables or ())
    return Derivation(chain, ready.chain, tuple(_resolved(tiled, ready)), tuple(nests), device.name)


def _resolved(chain: Chain, ready: Program) -> Iterator[ResolvedDependence]:
    known = {o.out for o in chain.operators if o.reduce != "none"}
    kept = {o.out for o in ready.chain.operators}

    def sums(name: str) -> set[str]:
        """The reductions that a reduction of the chain was rewritten to."""
        if name not in kept or ready.chain.operator(name).reduce != "none":
            return {name}
        written = through_maps(ready.chain, ready.chain.operator(name).body)
        return {r.tensor for r in reads(written)} - known

    for d in dependences(chain):
        targets, movings = sums(d.target), sums(d.moving)
        left = (r for r in ready.rolls if r.target in targets and r.moving in movings)
        yield ResolvedDependence(d, tuple(r for r in left if r.axis == d.axis))


def _way(r: Roll | Refusal) -> dict[str, Any]:
    if isinstance(r, Refusal):
        return {"way": "twice", "target": r.target, "refused": r.reason}
    return {
        "way": "roll", "target": r.target, "moving": r.moving, "g": r.g, "inverse": r.inverse,
        "repair": text(r.h),
    }  # fmt: skip
