"""A hit or a miss is explained over HTTP, without compilers in the web process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcfuser.process.confined import Stopped
from mcfuser_db import Storage
from mcfuser_service import explaining
from mcfuser_service.explaining import Explainer, asked_of
from mcfuser_service.here_child import answer
from mcfuser_service.problems import ProblemError
from mcfuser_service.settings import ServiceSettings
from tests.support.benches import CHAIN
from tests.support.kernels import tuned
from tests.support.records import searched

WORDS = "gemm:2,128,96,64,64"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Storage]:
    with closing(Storage(f"sqlite:///{tmp_path / 'x.db'}")) as store:
        yield store


@pytest.fixture
def explainer(store: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Explainer:
    """Asks in this process, once for each device."""
    asked: list[dict[str, Any]] = []

    def run(module: str, request: dict[str, Any], limits: object) -> dict[str, Any]:
        assert request not in asked
        asked.append(request)
        return answer(request, lambda message: None)

    monkeypatch.setattr(explaining, "run", run)
    return Explainer(ServiceSettings(data=tmp_path), store)


def explained(explainer: Explainer, *words: str | None) -> dict[str, Any]:
    return anyio.run(explainer, *words)


def test_a_chain_is_asked_by_its_name_its_key_or_a_kernel(
    store: Storage, explainer: Explainer
) -> None:
    store.put(searched())
    for words in (WORDS, CHAIN.key, searched().key):
        found = explained(explainer, words, None, "float32")
        assert (found["answer"], found["kernel"]) == ("hit", searched().key)
    found = explained(explainer, searched().key, "h200", "float32")
    assert found["answer"] == "miss" and "another device" in found["sentences"][1]


def test_what_is_not_known_is_a_problem(explainer: Explainer) -> None:
    for words in (("gemm:1", None), (WORDS, "none"), ("chain.json", "cpu"), ("../x", None)):
        with pytest.raises(ProblemError) as caught:
            explained(explainer, *words, "float32")
        assert caught.value.details["status"] == 422


def test_a_process_that_takes_too_long_is_told(
    explainer: Explainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*given: object) -> None:
        raise Stopped("time", "it took longer than 60 s")

    monkeypatch.setattr(explaining, "run", late)
    with pytest.raises(ProblemError, match="did not answer in time"):
        explained(explainer, WORDS, None, "float32")


def test_the_space_of_a_kernel_is_asked_for(store: Storage) -> None:
    made = searched().made
    assert made is not None
    other = replace(made, space="chimera", shifts=False)
    store.put(replace(searched(), key=other.digest, made=other))
    asked = asked_of(store, other.digest)
    assert asked is not None and (asked.space, asked.shifts) == ("chimera", False)
    store.put(replace(tuned("1"), made=None))
    old = asked_of(store, tuned("1").key)
    assert old is not None and old.chain_key == tuned().chain.key
    assert asked_of(store, WORDS) is None


def test_ages_are_those_of_the_kernels_that_are_kept(store: Storage, explainer: Explainer) -> None:
    good = searched()
    assert good.made is not None
    newer = replace(good.made, sources="other")
    store.put(good)
    store.put(replace(good, key=newer.digest, made=newer))
    store.put(replace(tuned("1"), device="nvidia/gone"))
    store.put(replace(tuned("2"), made=None))
    keys = [newer.digest, "f" * 64, good.key, tuned("1").key, tuned("2").key]
    ages = anyio.run(explainer.ages, keys)
    assert [(a.key, a.age) for a in ages] == [
        (newer.digest, "outdated"), (good.key, "current"), (tuned("1").key, "outdated"),
        (tuned("2").key, "outdated"),
    ]  # fmt: skip
    assert ages[0].reasons == ("the code generator's sources have changed",)
    assert ages[1].reasons == ()
    assert "'nvidia/gone' is not known" in ages[2].reasons[0]


def test_devices_have_rates_and_the_processor_is_probed_by_a_process(explainer: Explainer) -> None:
    gpu, here = anyio.run(explainer.device, "nvidia/h200"), anyio.run(explainer.device, "cpu")
    assert gpu is not None and gpu.bandwidth > 1e12
    assert here is not None and 0 < here.bandwidth < 1e13 and here.throughput("float32") > 0
    assert anyio.run(explainer.device, "nvidia/gone") is None


def test_those_who_ask_at_once_have_one_process(store: Storage, explainer: Explainer) -> None:
    """As the page of a kernel does, which asks for its age and for its roofline."""
    store.put(searched())

    async def ask() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(explainer.ages, [searched().key])
            group.start_soon(explainer.device, "cpu")
            group.start_soon(explainer, WORDS, "cpu", "float32")

    anyio.run(ask)  # the fixture refuses to be asked twice


def test_the_process_answers(tmp_path: Path, store: Storage) -> None:
    store.put(searched())
    document = anyio.run(Explainer(ServiceSettings(data=tmp_path), store), WORDS, "cpu", "float32")
    assert document["answer"] == "hit"
