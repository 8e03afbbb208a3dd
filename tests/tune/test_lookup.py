"""What a cache says of a chain: a hit, a stale one, or why it misses."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from mcfuser.backends import backend_of
from mcfuser.backends.cuda.backend import CUDA, CudaBackend
from mcfuser.devices.catalogue import CATALOGUE, device_named
from mcfuser.tune import key as key_module
from mcfuser.tune import recall as recall_module
from mcfuser.tune.key import CacheKey
from mcfuser.tune.lookup import Ages, Here, Lookup, damage, here, look_up
from mcfuser.tune.tuned import MemoryCache, Tuned, TuneOptions
from mcfuser.tune.tuner import key_of, tune
from tests.support.benches import CHAIN, HashBench
from tests.support.kernels import tuned
from tests.support.records import searched

CPU = device_named("cpu")
H200 = CATALOGUE["nvidia/h200"]


def cache_of(*kernels: Tuned) -> MemoryCache:
    return MemoryCache({k.key: k for k in kernels})


def asked(cache: MemoryCache) -> Lookup:
    backend = backend_of(CPU)
    now = here(CPU, backend, "mcfuser", True)
    assert Here.from_json(json.loads(json.dumps(now.to_json()))) == now
    return look_up(cache, CHAIN.key, now, partial(damage, backend))


def made_with(**versions: str) -> Tuned:
    """The kernel of a search that was made with other versions."""
    made = searched().made
    assert made is not None
    other = replace(made, toolchain=tuple((dict(made.toolchain) | versions).items()))
    return replace(searched(), key=other.digest, made=other)


def test_a_hit_and_its_budget() -> None:
    found = asked(cache_of(searched()))
    assert (found.answer, found.kernel) == ("hit", searched().key)
    assert found.sentences == (f"hit: kernel {searched().key}",)
    short = replace(searched(), budget=replace(searched().budget, trials=3, ended="trials"))
    (_, note) = asked(cache_of(short)).sentences
    assert note == "its search was cut short by trials=3: a larger one goes on from it"
    (_, note) = asked(cache_of(replace(searched(), measured=None))).sentences
    assert note == "it was never measured: a search on the device replaces it"


def test_an_empty_cache_and_one_with_candidates() -> None:
    cache = MemoryCache()
    assert asked(cache).sentences[1:] == ("nothing was ever kept for this chain",)
    with HashBench() as bench:
        tune(CHAIN, CPU, cache, TuneOptions(trials=8), worker=bench)
    cache.kept.clear()
    assert asked(cache).sentences[2] == (
        "the next search goes on from 8 candidates that were measured"
    )


def test_a_miss_names_the_nearest_and_what_differs() -> None:
    far, near = made_with(llvm="15", **{"apache-tvm": "0.20"}), made_with(llvm="15")
    found = asked(cache_of(far, near))
    assert found.answer == "miss" and [n.key for n in found.nearest] == [near.key, far.key]
    here = dict(found.asked.toolchain)["llvm"]
    assert found.sentences[1] == (
        f"kernel {near.key} is outdated: it was made with llvm 15, here is {here}"
    )
    document = found.to_json()
    assert document["asked"]["key"] == found.asked.digest and document["kernel"] is None
    assert document["nearest"][0]["reasons"] == [f"it was made with llvm 15, here is {here}"]


def test_a_stale_kernel_is_used_and_marked_until_it_is_tuned_anew() -> None:
    old = made_with(sympy="1.0")
    cache = cache_of(old)
    assert asked(cache).answer == "stale" and asked(cache).kernel == old.key
    with HashBench() as bench:
        used = tune(CHAIN, CPU, cache, TuneOptions(), worker=bench)
        assert not bench.alone and used.key == old.key
        assert used.stale.startswith("it was made with sympy 1.0, here is ")
        assert "stale" not in used.to_json() and cache.get(old.key) is old
        new = tune(CHAIN, CPU, cache, TuneOptions(retune=True), worker=bench)
    assert bench.alone and not new.stale and new.key != old.key
    assert asked(cache).answer == "hit"


def test_a_stale_kernel_of_a_shorter_search_is_not_compared_with_the_new_one() -> None:
    old = replace(made_with(sympy="1.0"), budget=replace(searched().budget, trials=1,
                                                         ended="trials"), trials=1)  # fmt: skip
    cache = cache_of(old)
    with HashBench() as bench:
        new = tune(CHAIN, CPU, cache, TuneOptions(trials=8), worker=bench)
    assert new.key == key_of(CHAIN, CPU, TuneOptions()).digest and not new.stale
    assert new.missed.startswith("the kept kernel's search was shorter, and it is stale: it was")


def test_a_kernel_that_cannot_be_launched_is_a_miss_with_a_reason() -> None:
    (first, why) = asked(cache_of(replace(searched(), launch={}))).sentences
    assert first.startswith("miss") and why.startswith("the kept kernel cannot be read: ")


def test_another_driver_makes_a_kernel_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaBackend, "driver", lambda self: "580.2")
    key_module.driver.cache_clear()
    key = key_of(CHAIN, H200, TuneOptions())
    kept = replace(tuned(), key=key.digest, made=key, conditions={"driver": "570.1"}, chain=CHAIN)
    found, why = recall_module.recall(
        cache_of(kept), key, CHAIN, lambda *given: None, CUDA.soft, CUDA.driver
    )
    assert found is not None and why == ""
    assert found.stale == "it was timed under driver 570.1, here is 580.2"
    assert Ages().of(key, H200.name, lambda: kept.conditions) == ("stale", (found.stale,))
    key_module.driver.cache_clear()


def test_the_age_of_a_kernel_whose_device_is_not_known() -> None:
    key: CacheKey = key_of(CHAIN, H200, TuneOptions())
    assert Ages().of(key, "nvidia/none", dict)[0] == "outdated"
    assert Ages().of(key, H200.name, dict) == ("current", ())
