"""The `Backend` protocol: a third back end, which is one file of tests/support, tunes every example
chain, and a knob more is one declaration."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mcfuser.chain import from_json
from mcfuser.measure.worker import Worker
from mcfuser.report import show_kernel
from mcfuser.space.knobs import knob
from mcfuser.tune.tuned import MemoryCache, Tuned, TuneOptions
from mcfuser.tune.tuner import compare, key_of, tune
from tests.support.examples import EXAMPLES, document, small
from tests.support.interpreted import DEVICE, INTERPRETED, Interpreted, InterpretedKnobs
from tests.support.paths import SUPPORT

OPTIONS = TuneOptions(trials=6, timeout=600.0)


class Sizes(dict[str, int]):
    """At most 40 positions of an axis, and two of a batch."""

    def __missing__(self, axis: str) -> int:
        return 2 if axis in ("b", "g", "h") else 40


@pytest.fixture(scope="module")
def worker():
    with Worker(INTERPRETED, DEVICE) as made:
        yield made


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem) for p in EXAMPLES])
def test_a_third_back_end_tunes_every_example_chain(path: Path, worker: Worker) -> None:
    chain = small(document(path), Sizes())
    cache = MemoryCache()
    found = tune(chain, DEVICE, cache, OPTIONS, worker=worker)
    assert found.measured is not None and found.error is not None and found.error < 1e-2
    assert found.device == "interpreted" and 0 < found.trials <= 6
    assert tune(chain, DEVICE, cache, OPTIONS, worker=worker) is found
    assert Tuned.from_json(found.to_json()) == found


def test_a_third_back_end_is_one_short_file() -> None:
    assert len((SUPPORT / "interpreted.py").read_text().splitlines()) < 300


CHAIN = from_json({
    "axes": {"m": 64, "n": 48, "k": 32},
    "tensors": {"A": {"shape": ["m", "k"]}, "B": {"shape": ["k", "n"]}},
    "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]"],
})  # fmt: skip


def test_programs_of_a_third_back_end_are_compared(worker: Worker) -> None:
    cache = MemoryCache()
    fast = tune(CHAIN, DEVICE, cache, OPTIONS, worker=worker)
    slow = Tuned(**{**fast.__dict__, "launch": {**fast.launch, "unroll": 0.5}})
    seconds = compare(worker, CHAIN, [[(fast, CHAIN)], [(slow, CHAIN)]], 0).seconds
    assert seconds[1] == pytest.approx(seconds[0] * 2 * fast.launch["unroll"])


@dataclass(frozen=True, slots=True)
class MoreKnobs(InterpretedKnobs):
    """A knob more: its declaration, and no other line."""

    swizzle: str = knob("none", ("none", "xor"))


class More(Interpreted):
    """The same back end with it, which thinks that it helps."""

    knobs: type = MoreKnobs

    def estimate(self, plan, tiles, settings, device):
        return super().estimate(plan, tiles, settings, device) / (
            1.0 + np.asarray(settings["swizzle"] == "xor")
        )


def test_a_knob_more_is_searched_stored_keyed_and_shown(worker: Worker) -> None:
    more = More()
    with Worker(more, DEVICE) as wider:
        found = tune(CHAIN, DEVICE, MemoryCache(), OPTIONS, worker=wider)
    assert found.lowering == {"unroll": 2, "swizzle": "xor"}
    assert Tuned.from_json(found.to_json()).lowering == found.lowering
    plain, wide = key_of(CHAIN, DEVICE, OPTIONS, INTERPRETED), key_of(CHAIN, DEVICE, OPTIONS, more)
    assert plain.knobs != wide.knobs and "swizzle" in wide.knobs
    out = io.StringIO()
    show_kernel(found, Console(file=out, width=200))
    assert "swizzle=xor" in out.getvalue()
    one = tune(CHAIN, DEVICE, MemoryCache(), OPTIONS, worker=worker)
    assert found.stages["lowered"] == 2 * one.stages["lowered"]
