"""How old a kept kernel is, and the words for it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from mcfuser.backends.cpu.backend import CPU
from mcfuser.backends.cuda.backend import CUDA
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.tune.age import age, driver_changed, reasons
from mcfuser.tune.key import CacheKey, cache_key

H200 = CATALOGUE["nvidia/h200"]
HERE = replace(
    cache_key("c", H200, "mcfuser", True, "knobs", CUDA),
    toolchain=(("triton", "3.6.1"), ("sympy", "1.14.0"), ("ptxas", "12.9.86")),
)


def made_with(**versions: str) -> CacheKey:
    return replace(HERE, toolchain=tuple((dict(HERE.toolchain) | versions).items()))


@pytest.mark.parametrize(
    ("kept", "expected", "words"),
    [
        (HERE, "current", ()),
        (made_with(sympy="1.9"), "stale", ("it was made with sympy 1.9, here is 1.14.0",)),
        (made_with(triton="3.6.0"), "stale", ("it was made with triton 3.6.0, here is 3.6.1",)),
        (made_with(triton="3.5.1"), "outdated", ("it was made with triton 3.5.1, here is 3.6.1",)),
        (made_with(triton="absent"), "outdated", ("it was made without triton, here is 3.6.1",)),
        (made_with(tvm="1"), "outdated", ("it was made with tvm 1, which is not installed here",)),
        (
            made_with(triton="3.6.0", ptxas="12.8.1"),
            "outdated",
            (
                "it was made with triton 3.6.0, here is 3.6.1",
                "it was made with ptxas 12.8.1, here is 12.9.86",
            ),
        ),
        (replace(HERE, sources="x"), "outdated", ("the code generator's sources have changed",)),
        (
            replace(HERE, space="chimera"),
            "outdated",
            ("it was searched in the space 'chimera', and 'mcfuser' is asked for",),
        ),
    ],
)
def test_two_tiers_of_age(kept: CacheKey, expected: str, words: tuple[str, ...]) -> None:
    assert age(kept, HERE, CUDA.soft) == expected
    assert reasons(kept, HERE) == words


def test_of_another_device_only_that_is_said() -> None:
    other = replace(HERE, device="nvidia/a100/sm_80/108/1/0", sources="x", knobs="y")
    assert age(other, HERE, CUDA.soft) == "outdated"
    (why,) = reasons(other, HERE)
    assert why.startswith("it was tuned for another device, nvidia/a100/") and HERE.device in why


def test_every_field_of_the_key_has_words() -> None:
    for field in fields(CacheKey):
        value = False if field.name == "shifts" else () if field.name == "toolchain" else "other"
        assert reasons(replace(HERE, **{field.name: value}), HERE), field.name
    assert reasons(replace(HERE, toolchain=HERE.toolchain[::-1]), HERE)


@pytest.mark.parametrize("backend", [CPU, CUDA])
def test_what_is_soft_is_in_the_toolchain(backend) -> None:
    assert set(backend.soft) <= dict(backend.toolchain()).keys()


def test_a_driver_is_compared_where_both_are_known() -> None:
    assert driver_changed("570.1", "580.2") == "it was timed under driver 570.1, here is 580.2"
    assert driver_changed("570.1", "570.1") == driver_changed(None, "1") == ""
    assert driver_changed("570.1", "") == driver_changed(3, "570.1") == ""
