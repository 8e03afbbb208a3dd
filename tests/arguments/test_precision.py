"""The names of precisions."""

from __future__ import annotations

import pytest

from mcfuser.arguments.precision import PRECISIONS, check_precision, narrow_type
from mcfuser.errors import InputError


def test_names_are_read() -> None:
    names = ("fp16", "bf16", "tf32", None)
    assert [narrow_type(n) for n in names] == ["float16", "bfloat16", "tf32", None]
    assert [check_precision(n) for n in (*PRECISIONS, None)] == [*names]


@pytest.mark.parametrize("name", ["", "fp8", "FP16", "float16", "int8", "x" * 1000])
def test_other_names_are_refused_with_those_that_are_known(name: str) -> None:
    for read in (narrow_type, check_precision):
        with pytest.raises(
            InputError, match=r"precision '.*' is not known; use fp16, bf16 or tf32$"
        ):
            read(name)
