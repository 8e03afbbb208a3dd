"""Kernels are written to a file, read from it, checked, and measured again."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mcfuser.backends.cpu.backend import CpuBackend
from mcfuser.errors import InputError
from mcfuser.tune.exchange import lines_of, read_line
from mcfuser.tune.rebuild import record_of
from mcfuser.tune.tried import Tried
from mcfuser.tune.tuned import Tuned
from mcfuser_db import Storage
from mcfuser_db.models import KernelRow
from mcfuser_service import importing
from tests.support.cache_command import cache
from tests.support.kernels import tuned
from tests.support.records import searched

T4_TRIED = [
    Tried("a0a1a2a3a4", {"a0": 8}, None, 1, True, {}, 2.5e-6, 1e-7),
    Tried("a0a1a2a3a4", {"a0": 4}, None, 1, True, {}, None, None, "3 elements too far off"),
]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setenv("MCFUSER_DATA", str(tmp_path))
    with closing(Storage(f"sqlite:///{tmp_path / 'mcfuser.db'}")) as store:
        yield store


def test_what_is_exported_is_read_again_and_has_no_binary(store: Storage, tmp_path: Path) -> None:
    for kernel in (searched(), tuned(device="nvidia/h200"), replace(tuned("n"), made=None)):
        store.put(kernel)
    file = tmp_path / "x.jsonl"
    assert "wrote 2 kernels" in cache("export", str(file)).stdout
    assert cache("export", "-").stdout == file.read_text()
    assert "wrote 1 kernels" in cache("export", str(file), "--device", "cpu").stdout
    ((_, text),) = lines_of(io.BytesIO(file.read_bytes()))
    assert read_line(text) == record_of(searched()) and b"binary" not in text
    assert "wrote 0 kernels" in cache("export", str(file), "--chain", "none").stdout
    told = json.loads(cache("export", str(file), "--device", "cpu", "--json").stdout)
    assert told["file"] == str(file) and told["kernels"] == 1 and told["devices"] == ["cpu"]
    assert told["bytes"] == file.stat().st_size
    assert any(words.startswith("llvm ") for words in told["toolchain"])
    with pytest.raises(InputError, match="standard output, and so would --json"):
        cache("export", "-", "--json")
    with pytest.raises(InputError, match="cannot be written"):
        cache("export", str(tmp_path / "nowhere" / "x"))


def test_candidates_are_exported_for_researchers(store: Storage, tmp_path: Path) -> None:
    one = searched()
    assert one.made is not None
    store.put(one)
    store.keep_tried(one.made, one.chain, "cpu", T4_TRIED)
    folder = tmp_path / "t4"
    words = ("export", str(folder), "--format", "t4")
    assert "wrote 2 candidates of 1 kernels to" in cache(*words).stdout
    document = json.loads((folder / f"{one.key}.json").read_text())
    assert [r["invalidity"] for r in document["results"]] == ["correct", "correctness"]
    told = json.loads(cache(*words, "--json").stdout)
    assert told == {"files": [str(folder / f"{one.key}.json")], "candidates": 2}
    assert "0 candidates of 0 kernels" in cache(*words, "--device", "h200").stdout
    with pytest.raises(InputError, match="name a folder"):
        cache("export", "-", "--format", "t4")


def test_an_import_says_what_became_of_every_line(
    store: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_MODULE", "tests.support.import_dies")
    (file := tmp_path / "x").write_text("kept known refused kept")
    ran = cache("import", str(file), status=1)
    assert "line 4 is refused: a reason" in ran.output
    assert "2 kernels were built, checked and kept; 1 were there already; 1 lines" in ran.output
    file.write_text("kept")
    assert json.loads(cache("import", str(file), "--json").stdout)["kept"] == 1
    for words in ([str(tmp_path / "none")], [str(file), "--timeout", "x"]):
        with pytest.raises(InputError):
            cache("import", *words)


def stale() -> Tuned:
    made = searched().made
    assert made is not None
    other = replace(made, toolchain=tuple((dict(made.toolchain) | {"sympy": "1.0"}).items()))
    return replace(searched(), key=other.digest, made=other)


def test_what_is_damaged_changed_or_old_is_told(store: Storage) -> None:
    assert "0 kernels: none is kept" in cache("verify").stdout
    store.put(searched())
    store.put(stale())
    assert "2 kernels: " in (text := cache("verify").stdout) and "1 sound" in text
    assert f"kernel {stale().key} is stale: it was made with sympy 1.0" in text
    store.put(replace(searched(), source=searched().source + "# edited\n"))
    text = cache("verify", status=1).stdout
    assert f"kernel {searched().key} is changed: the code generator makes another source" in text
    assert "1 sound" in cache("verify", "--no-generate").stdout
    with store._write.begin() as session:
        session.get_one(KernelRow, searched().key).binary = b"other"
    document = json.loads(cache("verify", "--json", status=1).stdout)
    assert document["counts"] == {"damaged": 1, "stale": 1}
    assert "1 kernels" in cache("prune", "--damaged").stdout
    assert store.kernel_count() == 1


def test_stale_kernels_are_measured_again(store: Storage, monkeypatch) -> None:
    monkeypatch.setattr(CpuBackend, "runner", "tests.support.hasty_cpu")
    assert "0 stale kernels" in cache("refresh").stdout
    store.put(stale())
    done = json.loads(cache("refresh", "--json").stdout)
    assert done == {"refreshed": [stale().key], "failed": []}
    new = store.get(searched().key)
    assert new is not None and new.source == searched().source and new.measured is not None
    assert store.get(stale().key) is None and store.kernel_count() == 1


def test_a_stale_kernel_whose_device_is_not_at_hand_stays(store: Storage, monkeypatch) -> None:
    store.put(stale())
    monkeypatch.setattr(CpuBackend, "missing", lambda self: "no CPU is at hand")
    assert f"kernel {stale().key} stays stale: no CPU is at hand" in cache("refresh").stdout
    assert store.get(stale().key) is not None
