"""Options of the test run, and what all tests share."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from mcfuser.backends.cpu.backend import CpuBackend
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.measure.worker import Worker
from mcfuser.tune.tuned import TuneOptions
from tests.support.hasty import ROUNDS, RUNNER
from tests.support.paths import PYTHONPATH

os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [PYTHONPATH, os.environ.get("PYTHONPATH")])
)  # processes that tests start run this checkout, whichever is installed
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")  # idle threads leave the cores to others

_TVM = importlib.util.find_spec("tvm") is not None
"""Without it, as on a machine that has a GPU and no more, the tests that need none run."""
PATIENT = 3600
"""Seconds that no test waits for, however busy the machine is."""

settings.register_profile("suite", deadline=None)  # a busy machine may be slow
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")
    parser.addoption("--cases", type=int, help="how many random chains the oracle looks at")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def no_steady_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests ask a compiled module, and a kernel, whether it is right; steady times would take
    seconds each."""
    if not _TVM:
        return
    monkeypatch.setattr(CpuBackend, "runner", RUNNER)
    for name, value in ROUNDS.items():
        monkeypatch.setattr(f"mcfuser.graph.running.{name}", value)
    monkeypatch.setattr("mcfuser_service.compilation._MODULE", "tests.support.hasty_compile")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine everything takes longer, and nothing has failed for that. Tests of a limit
    give their own."""
    _default(monkeypatch, Worker.__init__, limit=float(PATIENT))
    _default(monkeypatch, Compilers.__init__, longest=PATIENT)
    _default(monkeypatch, TuneOptions.__init__, timeout=float(PATIENT))
    monkeypatch.setattr("mcfuser.backends.cuda.builder.WAITING", float(PATIENT))
    monkeypatch.setattr("mcfuser.backends.cuda.builder.COMPILING", float(PATIENT) * 64)
    if _TVM:
        monkeypatch.setattr("mcfuser.graph.running._LIMIT", float(PATIENT))


def _default(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], **given: Any) -> None:
    """Gives parameters of a function other defaults."""
    parameters = inspect.signature(function).parameters.values()
    with_default = [p for p in parameters if p.default is not p.empty]
    assert set(given) <= {p.name for p in with_default}
    values = tuple(given.get(p.name, p.default) for p in with_default)
    monkeypatch.setattr(function, "__defaults__", values)
