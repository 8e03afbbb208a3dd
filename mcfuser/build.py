"""Builds the module of a model whose kernels are chosen; TVM compiles what they leave."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any

import tvm
from tvm import relax

from mcfuser.backend import Backend, Function, Names
from mcfuser.device import Device
from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.dynamic.buckets import LoadedBuckets, joined
from mcfuser.graph.intermediate import returning
from mcfuser.graph.load import Loaded
from mcfuser.graph.partition import Partition
from mcfuser.graph.refusal import refused
from mcfuser.graph.selection import ChainMatch
from mcfuser.graph.summing import summed_in_float32
from mcfuser.graph.weights import aligned
from mcfuser.tune.cover import Decision, pieces
from mcfuser.tune.tuned import names_of
from mcfuser.tune.tuner import kept_kernel


@dataclass(frozen=True)
class DecidedModel:
    """A model with the kernels that were chosen for its chains, before its module is built.

    `missing` says why modules for its device cannot run here, None where they can.
    """

    device: Device
    backend: Backend
    loaded: Loaded
    parted: Partition
    decisions: Mapping[str, Decision]
    missing: str | None

    @property
    def narrow(self) -> str | None:
        """The type to which the products were narrowed; None where they were not."""
        return self.loaded.narrowing.dtype if self.loaded.narrowing is not None else None

    def kernels(self, match: ChainMatch) -> int:
        """The number of kernels that compute a chain; 0 where it is left to TVM."""
        return len(self.decisions[match.chain.key].kernels)


def build(
    decided: DecidedModel, returned: Sequence[relax.Var] = (), fused: bool = True
) -> bytes | mmap:
    """The module of a model, which also returns the values `returned`, after its results.

    All is left to TVM unless it is `fused`; a value inside a chain cannot be returned otherwise.
    Raises InputError where TVM cannot build it.
    """
    decisions = decided.decisions if fused else {}
    replacements, binaries = _replacements(decided.parted.matches, decisions, decided.backend)
    with refused("TVM cannot build the module"):
        whole = decided.loaded.module
        whole = returning(whole, returned) if returned else whole
        module = _with_kernels(whole, replacements)
        return decided.backend.library(module, binaries, decided.device)


def build_buckets(dynamic: LoadedBuckets, decided: Sequence[DecidedModel]) -> bytes | mmap:
    """The module of a model with run-time extents, each of whose buckets is decided.

    Raises InputError where TVM cannot build it.
    """
    matches = [m for d in decided for m in d.parted.matches]
    backend, device = decided[0].backend, decided[0].device
    replacements, binaries = _replacements(matches, decided[0].decisions, backend)
    with refused("TVM cannot build the module"):
        modules = []
        for bucket in decided:
            own = {id(m) for m in bucket.parted.matches}
            chosen = [r for r in replacements if id(r.match) in own]
            modules.append(_with_kernels(bucket.loaded.module, chosen))
        return backend.library(joined(dynamic, modules), binaries, device)


def _with_kernels(module: tvm.IRModule, replacements: Sequence[Replacement]) -> tvm.IRModule:
    """The module with its kernels; what is left of narrow sums is computed in float32, too."""
    return summed_in_float32(install(module, replacements))


def _replacements(
    matches: Sequence[ChainMatch], decisions: Mapping[str, Decision], backend: Backend
) -> tuple[list[Replacement], list[Any]]:
    """The kernels for every chain with a decision, and the binaries that they launch.

    Places whose kernels and physical shapes are equal share one function.
    """
    shared: dict[object, Function] = {}
    made = []
    for match in matches:
        decision = decisions.get(match.chain.key)
        if decision is None or decision.kept is None:
            continue
        kept = decision.kept
        installed = []
        for tuned, chain in zip(kept.kernels, pieces(match.chain, kept.cut), strict=True):
            physical = {
                n: match.shapes.get(n, chain.shape(n)) for n in (*chain.inputs, *chain.outputs)
            }
            starts = {n: match.starts[n] for n in chain.inputs if n in match.starts}
            begins = tuple(starts.get(n, 0) for n in chain.inputs)
            key = (tuned.key, tuple(physical.values()), begins)
            if key not in shared:
                name = f"{re.sub(r'[^A-Za-z0-9_]', '_', chain.name)}_{len(shared)}"
                names = Names(*names_of(tuned, chain))
                shared[key] = backend.function(
                    kept_kernel(tuned), chain, names, f"chain_{name}", physical, starts
                )
            made_once = shared[key]
            packed = backend.packed(made_once, chain, match.constants)
            packed = {name: aligned(array) for name, array in packed.items()}  # one copy alone
            installed.append(
                Installed(made_once.name, chain, made_once.primfunc, packed, made_once.counters)
            )
        made.append(Replacement(match, tuple(installed)))
    return made, [f.binary for f in shared.values() if f.binary is not None]
