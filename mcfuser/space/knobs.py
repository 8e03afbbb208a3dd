"""Knobs: choices that a candidate makes besides its plan and its tile sizes, such as warps.

A back end declares its knobs as the fields of one frozen dataclass, each with `knob(..)`: its
default, the values it may have, for which candidates other values make sense, and whether these are
only for candidates that will be measured. An object of the dataclass sets all knobs. The objects
that a device allows are numbered, and that number is a candidate's last gene.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfuser.device import Device
from mcfuser.space.plan import Ints, Plan

KnobValue = int | bool | str
KnobSettings = Any
"""An object of a dataclass whose fields are knobs; it may have a method `allowed(device)`, which
says whether its values go together on a device."""
Columns = Mapping[str, NDArray[Any]]
"""The values of every knob by name, one entry a candidate."""
Applies = Callable[[Plan, Ints, Device], NDArray[np.bool_]]
"""For tiles [candidates, axes] of a plan, where a knob may have another value than its default."""
Feasible = Callable[[Plan, Ints, Columns, Device], NDArray[np.bool_]]
"""For tiles [candidates, axes] of a plan under settings, which candidates are feasible."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One knob's declaration. Where `measured`, a value other than the default is for candidates
    that are measured: the model alone does not choose it."""

    name: str
    default: KnobValue
    values: tuple[KnobValue, ...]
    applies: Applies | None = None
    measured: bool = False


def knob(
    default: KnobValue, values: tuple[KnobValue, ...], applies: Applies | None = None,
    measured: bool = False,
) -> Any:  # fmt: skip
    """A dataclass field that is a knob (`Knob`). Raises ValueError where the default is no value of
    it."""
    if default not in values:
        raise ValueError(f"the default {default!r} is none of the values {values!r}")
    declared = Knob("", default, values, applies, measured)
    return dataclasses.field(default=default, metadata={"knob": declared})


def declared(kind: type) -> tuple[Knob, ...]:
    """The knobs of a dataclass, in the order of its fields."""
    knobs = []
    for field in dataclasses.fields(kind):
        if "knob" not in field.metadata:
            raise TypeError(f"{kind.__name__}.{field.name} is not declared with knob(..)")
        knobs.append(dataclasses.replace(field.metadata["knob"], name=field.name))
    return tuple(knobs)


@dataclass(frozen=True)
class KnobTable:
    """The settings of a knobs dataclass that a device allows, numbered from 0; the first field's
    values vary slowest. In a `plain` table all knobs but the first have their defaults."""

    kind: type
    device: Device
    plain: bool = False

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        return declared(self.kind)

    @cached_property
    def settings(self) -> tuple[KnobSettings, ...]:
        first, *rest = (k.values for k in self.knobs)
        if self.plain:
            rest = [(k.default,) for k in self.knobs[1:]]
        every = itertools.product(first, *rest)
        made = (self.kind(*values) for values in every)
        return tuple(s for s in made if not hasattr(s, "allowed") or s.allowed(self.device))

    def __len__(self) -> int:
        return len(self.settings)

    def number(self, settings: KnobSettings) -> int:
        """Raises ValueError where the device does not allow the settings."""
        return self.settings.index(settings)

    def columns(self, numbers: Ints) -> dict[str, NDArray[Any]]:
        """The value of every knob for candidates with these numbers of settings."""
        return {name: column[numbers] for name, column in self._columns.items()}

    @cached_property
    def _columns(self) -> dict[str, NDArray[Any]]:
        return {k.name: np.asarray([getattr(s, k.name) for s in self.settings]) for k in self.knobs}

    @property
    def text(self) -> str:
        """The declaration, as a cache key holds it: names, values, and what goes together."""
        names = ", ".join(k.name for k in self.knobs)
        return f"{names}: {[tuple(dataclasses.astuple(s)) for s in self.settings]}"

    def choose(
        self, plan: Plan, tiles: Ints, feasible: Feasible, measured: bool = True
    ) -> tuple[Ints, Ints]:
        """The feasible candidates of a plan, as row numbers of `tiles` [rows, axes] and numbers of
        settings. Settings that are only for measured candidates are left out unless `measured`."""
        rows, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        known: dict[str, NDArray[np.bool_]] = {}
        for special, some in self._groups.items():
            if not measured and any(k.measured for k in special):
                continue
            fits = np.ones(len(tiles), bool)
            for k in special:
                if k.applies is not None and k.name not in known:
                    known[k.name] = k.applies(plan, tiles, self.device)
                fits &= known.get(k.name, True)
            at = np.flatnonzero(fits)
            rows.append(np.repeat(at, len(some)))
            numbers.append(np.tile(some, len(at)))
        which, number = np.concatenate(rows), np.concatenate(numbers)
        kept = feasible(plan, tiles[which], self.columns(number), self.device)
        return which[kept], number[kept]

    @cached_property
    def _groups(self) -> dict[tuple[Knob, ...], Ints]:
        """The numbers of settings, grouped by the knobs that have a value other than their default
        and do not apply to every candidate."""
        groups: dict[tuple[Knob, ...], list[int]] = {}
        for number, s in enumerate(self.settings):
            special = tuple(
                k for k in self.knobs
                if (k.applies is not None or k.measured) and getattr(s, k.name) != k.default
            )  # fmt: skip
            groups.setdefault(special, []).append(number)
        return {special: np.asarray(some, np.int64) for special, some in groups.items()}
