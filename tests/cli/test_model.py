"""`mcfuser model refit` keeps constants, and takes them back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mcfuser.cli.command import app
from mcfuser.errors import InputError
from mcfuser_db import Storage
from tests.support.kernels import tuned
from tests.support.refitted import DEVICE, all_kept, true_constants


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setenv("MCFUSER_DATA", str(tmp_path))
    with closing(Storage(f"sqlite:///{tmp_path / 'mcfuser.db'}")) as store:
        yield store


def model(*words: str) -> Result:
    ran = CliRunner().invoke(app, ["model", "refit", *words])
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran


def put(store: Storage, constants: dict[str, float]) -> None:
    for kernel, tried in all_kept(constants):
        assert kernel.made is not None
        store.put(kernel)
        store.keep_tried(kernel.made, kernel.chain, kernel.device, tried)


@pytest.mark.thorough
def test_better_constants_are_kept_and_taken_back(store: Storage) -> None:
    put(store, true_constants())
    dry = model("--device", "h200", "--dry-run").stdout
    assert "used 300 candidates of 5 chains" in dry and "it was a dry run" in dry
    assert store.probed(DEVICE) == DEVICE
    document = json.loads(model("--device", "h200", "--json").stdout)
    assert document["version"] == 1 and document["better"] and document["candidates"] == 300
    assert dict(store.probed(DEVICE).costs) == document["constants"]
    again = model("--device", "h200").stdout
    assert "nothing was kept: the ranking is not better" in again, again
    assert f"{document['before']['spearman']:.3f} before" in dry
    assert "are those of the catalogue again" in model("--device", "h200", "--reset").stdout
    assert store.probed(DEVICE) == DEVICE
    with pytest.raises(InputError, match="nothing to reset"):
        model("--device", "h200", "--reset")


def test_what_cannot_be_fitted_is_said(store: Storage) -> None:
    store.put(tuned(device=DEVICE.name))
    for words, why in (
        (("h200",), "0 candidates of 0 chains"),
        (("cpu",), "has no constants that could be fitted"),
        (("no-such",), "device 'no-such' is not known"),
        (("h200", "--reset", "--dry-run"), "contradict each other"),
    ):
        with pytest.raises(InputError, match=why):
            model("--device", *words)
