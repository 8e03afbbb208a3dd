"""Plans are looked at by several processes, and none is forgotten when these end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pytest

from mcfuser.backends.cuda.backend import CUDA
from mcfuser.chain import Chain, from_json, from_text
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.process.forkserver import ForkServer
from mcfuser.space.plan import Floats
from mcfuser.tune import expected, lister, listers
from mcfuser.tune.listers import MANY, LeastRequest, least_times
from mcfuser.tune.tuned import TuneOptions
from tests.support.processes import alive, eventually

H200 = CATALOGUE["nvidia/h200"]
CHAIN = from_text("gemm:1,512,256,64,64", "float16")
REQUEST = LeastRequest(CHAIN, H200, TuneOptions().space, TuneOptions().shifts)
COUNT = 3 * MANY


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[listers._Crew]:
    made = listers._Crew(2)
    monkeypatch.setattr(listers, "_crew", lambda: made)
    yield made
    made.stop()
    process = made._server._process
    if process is not None:
        process.end()


def pointwise() -> Chain:
    """A convolution of single positions, which lie by lines, with a bias and what it is added
    to."""
    axes = {"A": "mki", "B": "kn", "F": "n", "G": "min", "E": "min"}
    tensors = {n: {"shape": list(s), "dtype": "float16"} for n, s in axes.items()}
    return from_json({
        "axes": {"m": 2, "i": 256, "n": 1280, "k": 1280},
        "tensors": tensors,
        "operators": [
            "C[m, i, n] = sum[k] A[m, k, i] * B[k, n]",
            "E[m, i, n] = float16(C[m, i, n] + F[n] + G[m, i, n])",
        ],
    })  # fmt: skip


def here(plans: Sequence[int]) -> list[Floats]:
    return [np.array([float(i), os.getpid()]) for i in plans]


def told(crew: listers._Crew) -> set[int]:
    """The processes that have answered."""
    return {f.pid for f in crew._forks.values() if f.pid is not None}


def test_few_plans_are_looked_at_here(crew: listers._Crew) -> None:
    times = least_times(REQUEST, MANY - 1, here)
    assert [t.tolist() for t in times] == [[i, os.getpid()] for i in range(MANY - 1)]
    assert crew._server._process is None


def test_processes_answer_as_this_one_would(
    crew: listers._Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a real space, which is a large one already: each takes it apart for itself."""
    chain = pointwise()
    request = LeastRequest(chain, H200, REQUEST.space, REQUEST.shifts)
    tables = expected._looked_at(chain, H200, REQUEST.space, REQUEST.shifts, CUDA)
    assert tables is not None and len(tables) >= MANY
    alone = expected.least_times_here(request, CUDA, range(len(tables)))
    mine = list[int]()

    def counted(plans: Sequence[int]) -> list[Floats]:
        assert eventually(lambda: len(told(crew)) == 2), "both answer before this one goes on"
        mine.extend(plans)
        return expected.least_times_here(request, CUDA, plans)

    together = least_times(request, len(tables), counted)
    assert 0 < len(mine) < len(tables)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
    answer = lister.answer(LeastRequest(chain, H200, request.space, request.shifts, (3, 1)))
    np.testing.assert_array_equal(np.concatenate(answer), np.concatenate([alone[3], alone[1]]))


def test_what_a_process_dies_of_is_looked_at_here(crew: listers._Crew) -> None:
    crew._server = ForkServer("tests.support.lister_dies")
    times = least_times(REQUEST, COUNT, here)
    assert [t[0] for t in times] == list(range(COUNT))
    assert {t[1] for t in times[1::2]} == {os.getpid()}


def test_without_a_server_all_are_looked_at_here(crew: listers._Crew) -> None:
    crew._server = ForkServer("tests.support.no_such_module")
    for _ in range(2):
        times = least_times(REQUEST, COUNT, here)
        assert [t.tolist() for t in times] == [[i, os.getpid()] for i in range(COUNT)]
        assert crew.helpers == 0, "it is not tried again"


def test_the_processes_end_when_they_are_stopped_and_start_again(crew: listers._Crew) -> None:
    crew._server = ForkServer("tests.support.lister_dies")
    even = partial(crew._asked, 0, LeastRequest(CHAIN, H200, "deep", False, (2, 4)))
    answer = even()
    assert answer is not None and [t[0] for t in answer] == [2, 4]
    (pid,) = told(crew)
    listers.stop()
    assert eventually(lambda: not alive(pid)) and not crew._forks
    assert even() is not None and told(crew) not in (set(), {pid})
