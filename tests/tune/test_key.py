"""The key of a tuned kernel: what it holds, what it leaves out, and how two of them differ."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.backends.cpu.backend import CPU as CPU_BACKEND
from mcfuser.backends.cuda import backend as cuda
from mcfuser.backends.cuda.backend import CUDA
from mcfuser.backends.versions import ABSENT, package_version
from mcfuser.chain import gemm
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.tune import key as keys
from mcfuser.tune.key import CacheKey, cache_key, differs, nearest
from mcfuser.tune.tuned import TuneOptions
from mcfuser.tune.tuner import key_of
from tests.support.paths import ROOT

H200, A100 = CATALOGUE["nvidia/h200"], CATALOGUE["nvidia/a100"]
SMALL = gemm(2, 32, 32, 16, 16)
KEY = key_of(SMALL, H200, TuneOptions())

words = st.text(max_size=6)
made = st.builds(
    CacheKey, words, words, words, st.booleans(), words,
    st.dictionaries(words, words, max_size=3).map(lambda d: tuple(d.items())), words,
)  # fmt: skip


@given(made, made)
def test_keys_differ_where_their_digests_do(one: CacheKey, other: CacheKey) -> None:
    assert (one.digest == other.digest) == (one == other) == (not differs(one, other))
    assert CacheKey.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert len(one.digest) == 64


@given(made, st.sampled_from([f.name for f in fields(CacheKey)]))
def test_a_field_that_changes_is_named(one: CacheKey, name: str) -> None:
    old = getattr(one, name)
    new = not old if isinstance(old, bool) else f"{old}!" if isinstance(old, str) else None
    other = replace(one, **{name: new if new is not None else (*old, ("new compiler", "1"))})
    expected = "toolchain.new compiler" if name == "toolchain" else name
    assert differs(one, other) == differs(other, one) == (expected,)


@given(made, st.lists(made, max_size=4))
def test_the_nearest_differs_in_the_fewest_fields(one: CacheKey, kept: list[CacheKey]) -> None:
    counts = [len(differs(one, k)) for k in kept if k != one]
    assert len(nearest(one, kept)) == min(counts, default=0)


def test_a_changed_compiler_source_or_knob_is_another_key(monkeypatch) -> None:
    tools = tuple((n, "9.9" if n == "triton" else v) for n, v in KEY.toolchain)
    monkeypatch.setattr(keys, "toolchain", lambda kind: tools)
    assert differs(key_of(SMALL, H200, TuneOptions()), KEY) == ("toolchain.triton",)
    monkeypatch.setattr(keys, "sources", lambda kind: "another")
    both = key_of(SMALL, H200, TuneOptions())
    assert differs(both, KEY) == ("toolchain.triton", "sources")
    assert both.digest != KEY.digest
    other = cache_key(SMALL.key, H200, "mcfuser", True, KEY.knobs + "more", CUDA)
    assert "knobs" in differs(other, KEY)


def test_the_search_s_seed_and_budget_are_no_part_of_it() -> None:
    assert key_of(SMALL, H200, TuneOptions(9, 3, 1.0, retune=True)) == KEY
    assert differs(key_of(SMALL, A100, TuneOptions(space="chimera")), KEY) == ("device", "space")
    assert differs(key_of(SMALL, H200, TuneOptions(shifts=False)), KEY) == ("shifts",)


def test_a_gpu_s_key_knows_nothing_of_tvm_and_needs_none() -> None:
    assert [n for n, _ in keys.toolchain(CUDA)] == ["triton", "sympy", "ptxas"]
    cpu = {n for n, _ in keys.toolchain(CPU_BACKEND)}
    assert cpu == {"apache-tvm", "apache-tvm-ffi", "sympy", "llvm"}
    assert all(v != ABSENT for made in (CPU_BACKEND, CUDA) for _, v in keys.toolchain(made))
    code = (
        "import sys; sys.modules['tvm'] = None; from mcfuser.tune.key import toolchain, sources; "
        "from mcfuser.backends.cuda.backend import CUDA; "
        "from mcfuser.backends.cpu.backend import CPU; "
        "print(dict(toolchain(CUDA))['ptxas'], dict(toolchain(CPU))['llvm'], sources(CUDA), "
        "'triton' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ptxas, llvm, sources, loaded = told.stdout.split()
    assert (ptxas, llvm) == (dict(KEY.toolchain)["ptxas"], ABSENT)
    assert (sources, loaded) == (KEY.sources, "False")


def test_what_is_not_installed_is_said(monkeypatch) -> None:
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: None)
    assert dict(CUDA.toolchain())["ptxas"] == ABSENT
    assert package_version("no-such-package") == ABSENT


def imported(path: Path) -> set[Path]:
    """The files of this package that a file imports, wherever in it."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        for name in names:
            base = ROOT / Path(*name.split("."))
            found |= {p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()}
    return found - {ROOT / "mcfuser" / "__init__.py"}


@pytest.mark.parametrize(
    ("backend", "roots"),
    [(CPU_BACKEND, ("codegen/tensorir/function.py", "codegen/tensorir/build.py", "space/plan.py",
              "space/prune.py")),
     (CUDA, ("codegen/triton/function.py", "codegen/cuda/cubin.py", "space/plan.py",
               "space/prune.py"))],
)  # fmt: skip
def test_all_that_generates_code_is_hashed(backend, roots) -> None:
    left, seen = {ROOT / "mcfuser" / r for r in roots}, set[Path]()
    while left:
        path = left.pop()
        seen.add(path)
        left |= imported(path) - seen
    excepted = {ROOT / "mcfuser" / "codegen" / "__init__.py",  # empty
             ROOT / "mcfuser" / "device.py"}  # fmt: skip # its values are in the key themselves
    assert seen - excepted <= set(keys.generating(backend))
    ranking = [
        ROOT / "mcfuser" / r for r in ("model/fitted.py", "search/evolve.py", "measure/worker.py")
    ]
    assert not set(ranking) & set(keys.generating(backend))


def test_the_sources_are_hashed_by_content_and_quickly(monkeypatch, tmp_path) -> None:
    spent = []
    for _ in range(5):
        start = time.process_time()
        assert keys.sources.__wrapped__(CPU_BACKEND) == keys.sources(CPU_BACKEND)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.05
    before = keys.sources.__wrapped__(CPU_BACKEND)
    some = next(iter(keys.generating(CPU_BACKEND))).read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: some() + b"# changed")
    assert keys.sources.__wrapped__(CPU_BACKEND) != before
