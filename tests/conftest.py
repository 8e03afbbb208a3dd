"""Options of the test run, and what all tests share."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest
import typer.testing
from hypothesis import settings

from mcfuser.backends.cpu.backend import CpuBackend
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.measure.worker import Worker
from mcfuser.tune.tuned import TuneOptions
from tests.support.browser import browsing
from tests.support.forked_birth import ForkedPopen
from tests.support.hasty import ROUNDS, RUNNER
from tests.support.kept_child import KeptChild
from tests.support.paths import PYTHONPATH, TESTS

os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [PYTHONPATH, os.environ.get("PYTHONPATH")])
)  # processes that tests start run this checkout, whichever is installed
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")  # idle threads leave the cores to others

_TVM = importlib.util.find_spec("tvm") is not None
"""Without it, as on a machine that has a GPU and no more, the tests that need none run."""
PATIENT = 3600
"""Seconds that no test waits for, however busy the machine is."""

gc.set_threshold(20_000, 20, 20)  # each collection walks over all that tests have made
gc.disable()  # until the tests are collected, of which next to nothing is garbage

settings.register_profile("suite", deadline=None)  # a busy machine may be slow
settings.load_profile("suite")


LONGEST = (
    "codegen/triton/test_golden.py", "db/test_store.py", "service/test_page_live.py",
    "codegen/tensorir/test_winograd.py", "cli/test_compile.py", "test_compile.py",
    "service/test_serve.py", "service/oci/test_transfer.py", "batch/test_batch.py",
    "test_bisect.py",
    "codegen/test_integer_weights.py", "hostile/test_hostile_models.py", "test_decide.py",
    "service/test_inspect.py",
    "graph/dynamic/test_buckets.py", "service/test_outage.py", "codegen/tensorir/test_function.py",
    "codegen/test_hard_chains.py", "deploy/test_github.py", "deploy/test_monitoring.py",
    "graph/test_narrow.py", "space/test_oracle.py", "batch/test_remote.py",
    "service/test_compilation.py", "service/test_importing.py", "measure/test_worker.py",
    "service/test_events.py", "graph/test_precision.py", "graph/test_inplace.py",
    "service/test_contract.py", "test_explain.py", "space/test_place.py",
    "graph/test_concatenation.py", "process/test_child.py", "deploy/test_bundle.py",
    "tune/test_refit.py", "cli/test_terminal.py", "codegen/tensorir/test_matrix.py",
    "cli/test_model.py", "tune/test_proof.py", "cli/test_doctor.py", "codegen/test_apart.py",
    "lowering/triton/hopper/test_feasible.py", "service/test_app.py", "batch/test_locking.py",
    "model/test_fitted.py",
)  # fmt: skip
"""The files that take five seconds or more, the longest first; of those that share something, the
first one."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.scheduling import SharedScheduling  # needs pytest-xdist, as this hook does

    return SharedScheduling(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first: processes that share the suite, file by file, then end at about
    the same time. (pytest-xdist keeps this order with --no-loadscope-reorder.)"""
    order = {TESTS / name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_collection_finish() -> None:
    """Python's collector does not walk over all tests and all that they import."""
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")
    parser.addoption("--cases", type=int, help="how many random chains the oracle looks at")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Changes what all tests share, once: to do so for each of some thousands takes seconds."""
    with pytest.MonkeyPatch.context() as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def patched(patch: pytest.MonkeyPatch) -> None:
    """All that is changed for every test: one fixture, for each costs every test some time."""
    if _TVM:
        no_steady_timing(patch)
        unoptimized(patch)
        shallow_stacks(patch)
        forked_births(patch)
    kept_children(patch)
    kept_commands(patch)
    patience(patch)


def no_steady_timing(patch: pytest.MonkeyPatch) -> None:
    """Tests ask a compiled module, and a kernel, whether it is right; steady times would take
    seconds each."""
    patch.setattr(CpuBackend, "runner", RUNNER)
    for name, value in ROUNDS.items():
        patch.setattr(f"mcfuser.graph.running.{name}", value)
    patch.setattr("mcfuser_service.compilation._MODULE", "tests.support.hasty_compile")


def unoptimized(patch: pytest.MonkeyPatch) -> None:
    """Tests ask a module or kernel that they build whether it is right. Those that run the command
    build modules as users do, and what is measured is what users get."""
    from tests.support.unoptimized import cpu_target, host_target, kernel_passes

    patch.setattr("mcfuser.codegen.llvm.module.cpu_target", cpu_target)
    patch.setattr("mcfuser.codegen.llvm.module.kernel_passes", kernel_passes)
    patch.setattr("mcfuser.codegen.tensorir.build.host_target", host_target)


def shallow_stacks(patch: pytest.MonkeyPatch) -> None:
    """TVM's parser asks for the calls around it, and does without their sources, which Python looks
    for in all modules: a fifth of a second for each text, below the many calls of a test."""
    patch.setattr(inspect, "stack", partial(inspect.stack, 0))


def kept_children(patch: pytest.MonkeyPatch) -> None:
    """One process measures for many tests."""
    patch.setattr("mcfuser.measure.worker.Child", KeptChild)


def forked_births(patch: pytest.MonkeyPatch) -> None:
    """Processes that compile models, and those that measure, begin with TVM loaded."""
    patch.setattr("mcfuser.process.supervised.Popen", ForkedPopen)


def kept_commands(patch: pytest.MonkeyPatch) -> None:
    """typer makes the whole command anew for each call, from the signatures of its functions."""
    patch.setattr("typer.testing._get_command", cache(typer.testing._get_command))


def patience(patch: pytest.MonkeyPatch) -> None:
    """On a busy machine everything takes longer, and nothing has failed for that. Tests of a limit
    give their own."""
    _default(patch, Worker.__init__, limit=float(PATIENT))
    _default(patch, Compilers.__init__, longest=PATIENT)
    _default(patch, TuneOptions.__init__, timeout=float(PATIENT))
    patch.setattr("mcfuser.backends.cuda.builder.WAITING", float(PATIENT))
    patch.setattr("mcfuser.backends.cuda.builder.COMPILING", float(PATIENT) * 64)
    if _TVM:
        patch.setattr("mcfuser.graph.running._LIMIT", float(PATIENT))


def _default(patch: pytest.MonkeyPatch, function: Callable[..., Any], **given: Any) -> None:
    """Gives parameters of a function other defaults."""
    parameters = inspect.signature(function).parameters.values()
    with_default = [p for p in parameters if p.default is not p.empty]
    assert set(given) <= {p.name for p in with_default}
    values = tuple(given.get(p.name, p.default) for p in with_default)
    patch.setattr(function, "__defaults__", values)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all files. Each server has a port of its own, so no page has what another
    server's has kept; a test sets the window's size and the folder of downloads for itself."""
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser
