"""What the record of a kept kernel tells of its occupancy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mcfuser_service.documents import KernelDocument
from mcfuser_service.occupancy import occupancy_of
from tests.support.kernels import tuned

USED = {"registers": 168, "shared": 16_384, "spills": 0}


def record(device: str, **changed: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"resources": USED, "launch": {"threads": 128}, **changed}
    return replace(tuned(device=device), **given).to_json()


def test_a_record_tells_the_blocks_of_a_multiprocessor_and_what_bounds_them() -> None:
    found = occupancy_of(record("nvidia/h200"))
    assert found == {"threads": 128, "blocks": 3, "bound": "registers", "fraction": 384 / 2048}
    KernelDocument.model_validate(record("nvidia/h200") | {"occupancy": found})
    large = occupancy_of(record("nvidia/l4", resources=USED | {"shared": 90_000}))
    assert large == {"threads": 128, "blocks": 1, "bound": "shared memory", "fraction": 128 / 1536}
    small = occupancy_of(record("nvidia/a100", resources=USED | {"registers": 16, "shared": 0}))
    assert small is not None and (small["bound"], small["fraction"]) == ("threads", 1.0)


@pytest.mark.parametrize(
    "unknown",
    [
        record("cpu"),
        record("nvidia/gone"),
        record("nvidia/h200", resources={}),
        record("nvidia/h200", resources=USED | {"registers": "many"}),
        record("nvidia/h200", resources=USED | {"shared": 1 << 30}),  # it cannot run
        record("nvidia/h200", launch={}),
        record("nvidia/h200") | {"chain": {"axes": 3}},
        {"device": "nvidia/h200"},
    ],
)
def test_a_record_that_does_not_tell_it_has_none(unknown: dict[str, Any]) -> None:
    assert occupancy_of(unknown) is None
