"""The value `Device`: rates, and the key that a kernel is kept under."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from mcfuser.devices.catalogue import CATALOGUE

A100 = CATALOGUE["nvidia/a100"]


def test_an_unlisted_type_runs_at_the_rate_of_float32() -> None:
    assert A100.throughput("int32") == A100.throughput("float32")


def test_the_key_changes_with_what_a_kernel_depends_on_and_not_with_measured_rates() -> None:
    assert replace(A100, bandwidth=1.0, peak=(("float32", 1.0),)).key == A100.key
    for change in ({"name": "x"}, {"arch": "sm_90"}, {"units": 1}, {"fast": 1}, {"bits": 512},
                   {"vnni": True}):  # fmt: skip
        assert replace(A100, **change).key != A100.key  # type: ignore[arg-type]
    assert len({d.key for d in CATALOGUE.values()}) == len(CATALOGUE)


def test_devices_are_values() -> None:
    with pytest.raises(FrozenInstanceError):
        A100.units = 1  # type: ignore[misc]
    assert hash(A100) == hash(replace(A100))
