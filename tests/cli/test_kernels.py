"""Devices and kernels as users name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from mcfuser.cli.cache import app
from mcfuser.cli.kernels import device_name, full_key
from mcfuser.errors import InputError
from mcfuser_db import Storage
from tests.support.kernels import tuned


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Storage]:
    with closing(Storage(f"sqlite:///{tmp_path / 'x.db'}")) as store:
        yield store


def test_a_key_that_several_kernels_begin_with_is_refused(store: Storage) -> None:
    for last in "12":
        store.put(tuned(last.rjust(64, "a")))
    assert full_key(store, "A" * 63 + "1") == "a" * 63 + "1"
    with pytest.raises(InputError, match="several kernels"):
        full_key(store, "aaaaaa")


def test_a_device_may_be_named_without_its_vendor() -> None:
    assert (device_name(None), device_name("cpu"), device_name("h200")) == (
        None, "cpu", "nvidia/h200",
    )  # fmt: skip


def test_every_command_that_takes_a_device_completes_its_name() -> None:
    group: Any = get_command(app)
    begun = {}
    for name in group.commands:
        context = group.make_context("cache", [name, "--help"], resilient_parsing=True)
        for option in group.commands[name].params:
            if option.name == "device":
                found = option.shell_complete(context, "nvidia/h")
                begun[name] = [one.value for one in found]
    assert set(begun) == {"list", "explain", "export", "push", "verify", "refresh", "prune"}
    assert all(names == ["nvidia/h100", "nvidia/h200"] for names in begun.values()), begun
