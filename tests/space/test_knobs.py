"""Knobs: what a declaration says of settings, of their numbers, and of where they apply."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from mcfuser.device import Device
from mcfuser.space.expression import parse
from mcfuser.space.knobs import KnobTable, declared, knob
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from tests.support.chains import named

DEVICE = Device("some", "some", "some", 4, (("float32", 1e9),), 1e9, 1 << 16)
PLAN = Plan(program(named("linear", {"m": 64, "n": 64, "k": 64})), parse("mn.k"), frozenset())
TILES = np.asarray([[16, 16, 16], [32, 16, 16], [64, 16, 16]])


def tall(plan, tiles, device):
    return tiles[:, 0] >= 32


@dataclass(frozen=True)
class ThreeKnobs:
    warps: int = knob(4, (2, 4))
    fast: bool = knob(False, (False, True), tall)
    how: str = knob("plain", ("plain", "odd"), measured=True)

    def allowed(self, device: Device) -> bool:
        return not (self.fast and self.how == "odd")


TABLE = KnobTable(ThreeKnobs, DEVICE)


def every(plan, tiles, settings, device):
    return np.ones(len(tiles), bool)


def chosen(feasible=every, measured: bool = True) -> set[tuple[int, ThreeKnobs]]:
    rows, numbers = TABLE.choose(PLAN, TILES, feasible, measured)
    return {(int(r), TABLE.settings[n]) for r, n in zip(rows, numbers, strict=True)}


def test_settings_are_all_that_go_together_the_first_knob_slowest() -> None:
    assert len(TABLE) == 2 * 3
    assert [s.warps for s in TABLE.settings] == [2, 2, 2, 4, 4, 4]
    assert ThreeKnobs(4, True, "odd") not in TABLE.settings
    assert all(TABLE.number(s) == i for i, s in enumerate(TABLE.settings))
    with pytest.raises(ValueError):
        TABLE.number(ThreeKnobs(4, True, "odd"))


def test_columns_are_the_values_of_each_knob() -> None:
    numbers = np.asarray([0, 5, 1])
    columns = TABLE.columns(numbers)
    assert set(columns) == {"warps", "fast", "how"}
    for i, number in enumerate(numbers):
        setting = TABLE.settings[number]
        assert all(columns[name][i] == getattr(setting, name) for name in columns)


def test_a_knob_that_applies_in_places_keeps_its_default_elsewhere() -> None:
    found = chosen()
    assert {r for r, s in found if s.fast} == {1, 2}
    assert {r for r, s in found if not s.fast} == {0, 1, 2}
    assert len(found) == 3 * 2 * 2 + 2 * 2


def test_what_is_only_for_measuring_is_left_out_where_nothing_is_measured() -> None:
    assert {s.how for _, s in chosen(measured=False)} == {"plain"}
    assert {s.how for _, s in chosen()} == {"plain", "odd"}


def test_what_is_not_feasible_is_left_out_and_asked_with_its_settings() -> None:
    def few(plan, tiles, settings, device):
        assert len(settings["warps"]) == len(tiles) and device is DEVICE
        return (settings["warps"] == 2) & (tiles[:, 0] < 64)

    assert {(r, s.warps) for r, s in chosen(few)} == {(0, 2), (1, 2)}


def test_the_text_names_every_knob_and_every_setting() -> None:
    assert all(name in TABLE.text for name in ("warps", "fast", "how", "odd"))

    @dataclass(frozen=True)
    class Fewer:
        warps: int = knob(4, (4,))

    assert KnobTable(Fewer, DEVICE).text != TABLE.text


def test_a_default_that_is_no_value_and_a_field_without_declaration_are_refused() -> None:
    with pytest.raises(ValueError, match="the default 3 is none of the values"):
        knob(3, (1, 2))

    @dataclass(frozen=True)
    class Loose:
        warps: int = field(default=4)

    with pytest.raises(TypeError, match=r"Loose\.warps is not declared with knob"):
        declared(Loose)


def test_in_a_plain_table_the_first_knob_alone_varies() -> None:
    plain = KnobTable(ThreeKnobs, DEVICE, plain=True)
    assert plain.settings == (ThreeKnobs(2), ThreeKnobs(4))
