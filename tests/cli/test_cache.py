"""`mcfuser cache`: what is kept is listed, shown, explained and removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mcfuser.errors import InputError
from mcfuser.tune.tried import Tried
from mcfuser.tune.tuned import Tuned
from mcfuser_db import Storage
from tests.support.benches import CHAIN
from tests.support.cache_command import cache
from tests.support.kernels import tuned
from tests.support.records import searched

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setenv("MCFUSER_DATA", str(tmp_path))
    with closing(Storage(f"sqlite:///{tmp_path / 'mcfuser.db'}", lambda: NOW)) as store:
        yield store


def old() -> Tuned:
    """A kernel of the same chain that was made with another LLVM."""
    made = searched().made
    assert made is not None
    other = replace(made, toolchain=tuple((dict(made.toolchain) | {"llvm": "15"}).items()))
    return replace(searched(), key=other.digest, made=other)


def test_kernels_are_listed_with_their_ages(store: Storage) -> None:
    for kernel in (searched(), old(), tuned(device="nvidia/h200")):
        store.put(kernel)
    one = Tried("a0", {"a0": 1}, None, 1, True, {}, 1e-6, 1e-7)
    made = replace(old().made, sources="x")  # type: ignore[type-var]
    store.keep_tried(made, CHAIN, "cpu", [one])
    listed = json.loads(cache("list", "--json").stdout)
    ages = {k["key"]: k["age"] for k in listed["kernels"]}
    assert ages[searched().key] == "current" and ages[old().key] == "outdated"
    assert [u["results"] for u in listed["unfinished"]] == [1]
    text = cache("list", "--device", "cpu").stdout
    assert searched().key[:16] in text and "it was made with llvm 15, here is" in text
    assert "nvidia" not in text and "1 searches were interrupted" in text
    assert "0 kernels" in cache("list", "--chain", "none").stdout
    with pytest.raises(InputError, match="is not known"):
        cache("list", "--device", "none")


def test_a_kernel_is_shown_by_the_first_digits_of_its_key(store: Storage) -> None:
    store.put(searched())
    key = searched().key
    knobs = dict(searched().lowering)
    right = Tried("a1a2", {"a1": 16, "a2": 32}, None, 1, True, knobs, 2e-6, 1e-7)
    wrong = replace(right, parts=2, seconds=None, failed="its registers spill")
    store.keep_tried(searched().made, CHAIN, "cpu", [right, wrong])  # type: ignore[arg-type]
    text = cache("show", key[:8], "--candidates", "5", "--source").stdout
    assert f"kernel {key} is current" in text and "2 candidates are kept, 1 of them failed" in text
    assert "2.0 us  mn  m=16 n=32" in text and "def kernel_" in text
    document = json.loads(cache("show", key, "--json").stdout)
    assert document["source"] == searched().source and document["age"] == "current"
    assert [t["failed"] for t in document["tried"]] == [None, "its registers spill"]
    for words, why in (("xyz", "is no key"), ("0" * 64, "no kernel has a key"), ("0", "is no key")):
        with pytest.raises(InputError, match=why):
            cache("show", words)


def test_a_chain_is_explained_by_its_name_its_key_or_a_kernel(store: Storage) -> None:
    store.put(old())
    chain = "gemm:2,128,96,64,64"
    told = {cache("explain", w).stdout for w in (chain, CHAIN.key, old().key)}
    assert len(told) == 1 and "it was made with llvm 15, here is" in told.pop()
    store.put(searched())
    document = json.loads(cache("explain", chain, "--json").stdout)
    assert (document["answer"], document["kernel"]) == ("hit", searched().key)
    assert "another device" in cache("explain", old().key, "--device", "h200").stdout
    with pytest.raises(InputError):
        cache("explain", "gemm:1")


def test_pruning_removes_what_meets_every_condition(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="say what to remove"):
        cache("prune")
    store.put(searched())
    store.put(old())
    one = Tried("a0", {"a0": 1}, None, 1, True, {}, 1e-6, 1e-7)
    store.keep_tried(old().made, CHAIN, "cpu", [one])  # type: ignore[arg-type]
    assert "1 kernels and 0 interrupted searches would be removed" in (
        cache("prune", "--stale", "--dry-run").stdout
    )
    assert store.kernel_count() == 2
    assert json.loads(cache("prune", "--stale", "--json").stdout)["kernels"] == [old().key]
    assert store.kernel_count() == 1 and store.tried(old().key) == []
    later = (datetime.now(UTC) - NOW) / timedelta(days=1)
    assert "0 kernels" in cache("prune", "--days", str(later + 1)).stdout
    assert "0 kernels" in cache("prune", "--device", "h200").stdout
    assert "1 kernels" in cache("prune", "--days", str(later - 1), "--device", "cpu").stdout
    assert store.kernel_count() == 0
