"""The regions of a module that were chosen so far, and why others could not be."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from mcfuser.chain import Chain
from mcfuser.graph.dataflow import Dataflow, shape, sources
from mcfuser.graph.lift import Lifted


@dataclass(frozen=True, slots=True)
class JoinedResult:
    """Where a chain writes its only result: into the concatenation `whole`, of which it is, after
    some `views`, what lies from position `begin` to `end` along an axis. `key` is that of the chain
    whose result is an array of its own."""

    whole: relax.Var
    views: tuple[relax.Var, ...]
    axis: int
    begin: int
    end: int
    key: str

    @property
    def row(self) -> int:
        """The elements of the part that lie behind each other."""
        return (self.end - self.begin) * self._inner

    @property
    def start(self) -> int:
        """The elements of the concatenation's array before the first one of the part."""
        return self.begin * self._inner

    @property
    def stride(self) -> int:
        """The elements of that array from a row of the part to the next one."""
        return shape(self.whole)[self.axis] * self._inner

    @property
    def _inner(self) -> int:
        return math.prod(shape(self.whole)[self.axis + 1 :])


@dataclass(frozen=True, slots=True)
class ChainMatch:
    """A chain of a module, and the values of the module that it reads, replaces and computes.

    `arguments` are the values of its inputs that are computed at run time, `constants` the arrays
    of the others, each in the chain's own dimensions; `shapes` are the physical shapes of all
    inputs and outputs, and `channels_last` those of these that are stored so. `bindings` are the
    values that it replaces, the last one its output. `saved` is the number of bytes that need not
    be written and read back. `starts` are the elements of arguments before those where the chain's
    arrays begin. A result that is `joined` is written into a concatenation, whose shape it has.
    """

    chain: Chain
    arguments: Mapping[str, relax.Expr]
    constants: Mapping[str, NDArray[np.generic]]
    outputs: Mapping[str, relax.Var]
    shapes: Mapping[str, tuple[int, ...]]
    bindings: tuple[relax.Var, ...]
    saved: int
    channels_last: frozenset[str] = frozenset()
    starts: Mapping[str, int] = field(default_factory=dict)
    joined: JoinedResult | None = None

    @property
    def priced(self) -> str:
        """The key of its chain as regions are priced, whose result is an array of its own."""
        return self.joined.key if self.joined is not None else self.chain.key


def places(matches: Iterable[ChainMatch]) -> dict[str, list[ChainMatch]]:
    """The places of each distinct chain, by its key, in the order in which the first ones run."""
    found: dict[str, list[ChainMatch]] = {}
    for match in matches:
        found.setdefault(match.chain.key, []).append(match)
    return found


@dataclass
class Selection:
    """The chains that were taken from a module so far.

    `closed` are the values that they compute, `arguments` those that they read, and `live` those
    that are still read. `reasons` say of products why they share no chain.
    """

    flow: Dataflow
    matches: list[ChainMatch] = field(default_factory=list)
    closed: set[relax.Var] = field(default_factory=set)
    arguments: set[relax.Var] = field(default_factory=set)
    reasons: dict[relax.Var, str] = field(default_factory=dict)
    live: set[relax.Var] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Finds the values that are still read. A view that was lifted into a chain is read no
        more."""
        self.live = set(self.flow.outputs) | self.arguments
        for v in reversed(self.flow.order):
            if self._is_read(v):
                self.live.add(v)

    def _is_read(self, v: relax.Var) -> bool:
        """Whether a value is still read, given which of its readers are."""
        if v in self.flow.outputs or v in self.arguments or v in self.closed:
            return True
        readers = self.flow.readers.get(v, ())
        return any(r in self.live and r not in self.closed for r in readers)

    def readers(self, v: relax.Var, inside: set[relax.Var]) -> tuple[relax.Var, ...]:
        """The values outside `inside` that read `v` and are computed by no chain so far."""
        every = self.flow.readers.get(v, ())
        return tuple(
            r for r in every if r in self.live and r not in self.closed and r not in inside
        )

    def escapes(self, inner: Sequence[relax.Var], inside: set[relax.Var]) -> str | None:
        """Why a value of `inner` must be stored although only `inside` should read it."""
        for v in inner:
            if v in self.flow.outputs:
                return f"'{v.name}' is an output of the model"
            if v in self.arguments:
                return f"'{v.name}' is also read by another chain"
            if others := self.readers(v, inside):
                return (
                    f"'{v.name}' is also read by '{self.flow.name(others[0])}' "
                    f"({self.flow.operator(others[0])})"
                )
        return None

    def take(self, members: Sequence[relax.Var], lifted: Lifted, saved: int) -> None:
        self.matches.append(
            ChainMatch(
                lifted.chain,
                lifted.arguments,
                lifted.constants,
                lifted.outputs,
                lifted.shapes,
                tuple(members),
                saved,
                lifted.channels_last,
                lifted.starts,
            )
        )
        read = {a for a in lifted.arguments.values() if isinstance(a, relax.Var)}
        self.closed |= set(members)
        self.arguments |= read
        self.live |= read
        self._update({*members, *read, *(v for m in members for v in sources(self.flow.values[m]))})

    def _update(self, changed: Iterable[relax.Var]) -> None:
        """Finds anew whether these values are still read, and then those that they are computed
        from where that has changed: `refresh` after a change, without a walk over all values."""
        position = self.flow.position
        left = [-position[v] for v in changed if v in position]
        heapq.heapify(left)
        while left:
            v = self.flow.order[-heapq.heappop(left)]
            while left and self.flow.order[-left[0]] is v:
                heapq.heappop(left)
            if self._is_read(v) != (v in self.live):
                self.live ^= {v}
                for source in sources(self.flow.values[v]):
                    if source in position:
                        heapq.heappush(left, -position[source])
