"""A model at a glance: its chains and what runs between them, in the order in which they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tvm
from tvm import relax

from mcfuser.graph.dataflow import dataflow
from mcfuser.graph.leftover import NOT_COMPUTED
from mcfuser.graph.partition import Partition

MOST = 1000
"""The most steps that a report has of a model."""


@dataclass(frozen=True, slots=True)
class OutlineStep:
    """A chain of a model at one of its places, or operators in no chain that follow each other for
    the same `reason`.

    `chain` is the chain's number among the distinct ones, from 0, and None where it is none. `name`
    is the chain's name at this place, or that of the first operator. `operators` are the numbers of
    the operators by their names.
    """

    chain: int | None
    name: str
    operators: Mapping[str, int]
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def outline(module: tvm.IRModule, parted: Partition, keys: Sequence[str]) -> list[OutlineStep]:
    """The steps of a module that was parted; `keys` are those of the distinct chains, in the order
    of their numbers. A chain stands where its last value is computed, and values that only chains
    would need are left out."""
    return list(_joined(_steps(module, parted, keys)))


def _steps(module: tvm.IRModule, parted: Partition, keys: Sequence[str]) -> Iterator[OutlineStep]:
    flow, numbers = dataflow(module["main"]), {key: n for n, key in enumerate(keys)}
    ends = {m.bindings[-1]: m for m in parted.matches}
    for v in flow.order:
        if (match := ends.get(v)) is not None:
            computed = (flow.operator(b) for b in match.bindings)
            number = numbers[match.chain.key]
            yield OutlineStep(number, match.chain.name, _counted(computed), None)
        reason = parted.left.get(v)
        if reason in (None, NOT_COMPUTED) or not isinstance(flow.values[v], relax.Call):
            continue  # a part of several results, or several together
        yield OutlineStep(None, flow.name(v), {flow.operator(v): 1}, reason)


def _joined(steps: Iterator[OutlineStep]) -> Iterator[OutlineStep]:
    """Operators that are in no chain for one reason, as one step."""
    last: OutlineStep | None = None
    for step in steps:
        if last is not None and step.chain is None and step.reason == last.reason:
            several = Counter(last.operators)
            several.update(step.operators)
            last = OutlineStep(None, last.name, dict(several), last.reason)
            continue
        if last is not None:
            yield last
        last = step
    if last is not None:
        yield last


def _counted(names: Iterator[str]) -> dict[str, int]:
    return dict(Counter(names))
