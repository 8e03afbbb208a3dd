"""Where values lie in the arrays of concatenations, followed element by element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tvm import relax

from mcfuser.codegen.cuda.places import (
    ALIGNED,
    ArrayPlace,
    ArrayPlaces,
    ValueFlow,
    extents,
    kernels_of,
    places,
    value_flow,
    within,
)
from tests.support.concatenations import WIDTH, Model, drawn


class Memory:
    """The arrays of a function as they are written, each element by its name."""

    def __init__(self, flow: ValueFlow, found: ArrayPlaces) -> None:
        self.flow, self.found = flow, found
        self.arrays: dict[relax.Var, NDArray[Any]] = {}
        self.names: dict[Any, NDArray[Any]] = {}
        self.copied = 0

    def of(self, value: Any) -> NDArray[Any]:
        """The names of a value's elements, each value's its own."""
        if value not in self.names:
            first = 1 + sum(n.size for n in self.names.values())
            self.names[value] = first + np.arange(math.prod(extents(value)))
        return self.names[value]

    def at(self, value: Any, place: ArrayPlace) -> NDArray[Any]:
        """The elements of an array where a value lies."""
        size = math.prod(extents(place.whole))
        array = self.arrays.setdefault(place.whole, np.zeros(size, int))
        return array[place.start : place.start + math.prod(extents(value))]

    def read(self, value: Any) -> None:
        """What lies in an array is there."""
        origin = self.flow.origin(value)
        if (place := within(self.found.lying, origin)) is not None:
            np.testing.assert_array_equal(self.at(value, place), self.seen(value))

    def seen(self, value: Any) -> NDArray[Any]:
        """The names of the elements of a value, which may be a view or a slice."""
        origin = self.flow.origin(value)
        first, size = origin.start, math.prod(extents(value))
        return self.of(origin.whole)[first : first + size]

    def write(self, value: Any) -> None:
        """A value is where it lies from now on, and nothing was there before."""
        if (place := self.found.lying.get(value)) is not None:
            assert not self.at(value, place).any()
            assert place.start * 4 % ALIGNED == 0
            self.at(value, place)[:] = self.of(value)

    def join(self, value: relax.Var) -> None:
        """A concatenation has its parts; those that are copied are copied once."""
        parts = self.flow.joined[value]
        self.names[value] = np.concatenate([self.seen(p.value) for p in parts])
        lies = self.found.lying.get(value)
        for part in parts:
            place = None if lies is None else ArrayPlace(lies.whole, lies.start + part.start)
            copied = place is not None and self.found.copy(self.flow, part, place) is not None
            if place is not None and copied and not self.at(part.value, place).any():
                self.at(part.value, place)[:] = self.seen(part.value)
                self.copied += 1
        self.read(value)


def follow(model: Model) -> tuple[ValueFlow, ArrayPlaces]:
    """Places of a model's values at which all that reads them finds them."""
    main = model.module["main"]
    flow = value_flow(main, kernels_of(model.module))
    found = places(flow)
    memory = Memory(flow, found)
    for value, made in flow.values.items():
        if flow.launches(value):
            for read in made.args[1].fields:
                memory.read(read)
            for written in flow.results(value):
                if written is not None:
                    memory.write(written)
        elif value in flow.joined:
            memory.join(value)
    assert memory.copied == len({place for _, place in found.copied})
    return flow, found


@given(st.data())
def test_what_reads_a_value_finds_it(data: st.DataObject) -> None:
    flow, found = follow(drawn(data))
    joined = [v for v in found.lying if v in flow.joined]
    wholes = {at.whole for at in found.lying.values()}
    assert wholes <= {*joined}
    assert len(found.copied) + len(found.sliced) <= len(joined) - len(wholes)
    for value, at in found.lying.items():
        outside = [
            r for r in flow.readers_of(value) if not flow.launches(r) and r not in found.lying
        ]
        assert not outside or value in found.sliced or at.whole.same_as(value)


def test_other_views_of_what_is_copied_are_copied_where_they_are_read_first() -> None:
    """The smaller concatenation has the input and a view of it, where the larger one has the input
    twice, and comes before it."""

    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        view = model.emit(relax.op.reshape(x, (1, 2 * WIDTH)))
        first = model.join(x, model.emit(relax.op.reshape(view, (1, 2, WIDTH))))
        read, second = model.one([first], 1), model.join(x, x, model.one([x], 1))
        return [model.one([model.join(second, read)], 2)]

    flow, found = follow(Model(make))
    small, large, *_ = flow.joined
    assert found.lying[small].start == 0 and len(found.copied) == 2 and large in found.lying


def test_a_part_of_what_is_read_is_no_copy_of_it() -> None:
    """A concatenation begins as a larger one does, with more of the same value."""

    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        one, both = model.cut(x, 0, 1), model.cut(x, 0, 2)
        large = model.join(one, model.one([x], 1), x, x)
        return [model.one([large], 1), model.one([model.join(both, x)], 1)]

    follow(Model(make))


def test_the_largest_concatenation_has_the_array() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        kept = [model.one([x], 4)]
        for _ in range(3):
            kept.append(model.one([model.join(*kept)], 2))
        return [model.one([model.join(*kept)], 1)]

    flow, found = follow(Model(make))
    joined = [*flow.joined]
    assert {at.whole for at in found.lying.values()} == {joined[-1]}
    assert [found.lying[v].start for v in joined] == [0] * 4
    starts = sorted(at.start for v, at in found.lying.items() if v not in joined)
    assert starts == [0, 4 * WIDTH, 6 * WIDTH, 8 * WIDTH]
    assert not found.sliced
    assert not found.copied
