"""Records of stored kernels: what may stand in them before code is generated from it."""

from __future__ import annotations

import pytest

from mcfuser.tune.record import check
from tests.support.kernels import tuned

DOCUMENT = tuned().to_json()


def test_a_kernel_s_own_record_is_fine() -> None:
    check(DOCUMENT)
    check({name: value for name, value in DOCUMENT.items() if name not in ("split", "parts")})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tiles", {"m": 1}),
        ("split", None),
        ("split", "n_2"),
        ("split", "n" * 500),
        ("parts", 1),
        ("parts", 64),
        ("expression", "m.n(k,h)"),
        ("expression", "m" * 10_000),
        ("key", "0a" * 32),
        ("resources", {"shared": 0, "registers": -1, "share": 0.5}),
        ("lowering", {"a": 1, "b": True, "c": "kernel", "d": None, "e": [1, "x", [2.5]]}),
    ],
)
def test_what_a_field_may_hold(field: str, value: object) -> None:
    check(DOCUMENT | {field: value})


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("tiles", {"m": 0, "n": 16}, "tiles[m]"),
        ("tiles", {"m": True}, "tiles[m]"),
        ("tiles", {"m": "16"}, "tiles[m]"),
        ("split", "n; import os", "split"),
        ("split", "2n", "split"),
        ("split", "", "split"),
        ("split", 3, "split"),
        ("split", "n" * 501, "split"),
        ("parts", 0, "parts"),
        ("parts", 2.0, "parts"),
        ("parts", True, "parts"),
        ("expression", "m n", "expression"),
        ("expression", "", "expression"),
        ("expression", "m" * 10_001, "expression"),
        ("expression", None, "expression"),
        ("key", "0A", "key"),
        ("key", "0" * 65, "key"),
        ("key", "", "key"),
        ("resources", {"shared": "1"}, "resources[shared]"),
        ("resources", {"shared": True}, "resources[shared]"),
        ("lowering", {"warps": "4; x"}, "lowering[warps]"),
        ("lowering", {"warps": {"a": 1}}, "lowering[warps]"),
        ("lowering", {"warps": [1, ["a b"]]}, "lowering[warps]"),
    ],
)
def test_anything_else_is_named(field: str, value: object, named: str) -> None:
    with pytest.raises(ValueError) as refused:
        check(DOCUMENT | {field: value})
    assert str(refused.value) == f"its {named} is not what a kernel has there"


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(ValueError, match="its tiles\\[m\\], split, parts is not what a kernel"):
        check(DOCUMENT | {"tiles": {"m": -1}, "split": "-", "parts": None})
