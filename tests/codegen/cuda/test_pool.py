"""Compiling side by side, in processes that are kept."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mcfuser.chain import gemm
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.codegen.triton import Lowering, Source, generate
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.space.prune import distinct, prune, space


def source():
    chain = gemm(1, 64, 64, 32, 32, "float16")
    plan, tiles = distinct(prune(space(chain), CATALOGUE["nvidia/h200"])[0]).tables[0]
    schedule = plan.schedule(dict(zip(plan.axes, (int(n) for n in tiles[0]), strict=True)))
    return generate(schedule, "kernel", Lowering(4, 2))


@pytest.fixture(scope="module")
def compilers():
    with Compilers(2, longest=600) as made:
        made.warm()
        yield made


def test_each_source_gets_its_answer(compilers) -> None:
    right = source()
    broken = replace(right, text=right.text.replace("tl.dot", "tl.no_such_thing", 1))
    crash = replace(
        right, text=right.text.replace("@triton.jit", "import os; os.abort()\n@triton.jit", 1)
    )
    found = dict(compilers.compile([right, broken, crash, right], "sm_90"))
    assert isinstance(found[0], Binary) and isinstance(found[3], Binary)
    assert "does not compile" in str(found[1]) and "crashed" in str(found[2])


def test_after_a_crash_the_processes_are_new(compilers) -> None:
    ((_, found),) = compilers.compile([source()], "sm_90")
    assert isinstance(found, Binary)


def held(right: Source, gate: Path, then: str = "pass") -> Source:
    """A source that compiles only once the gate is there."""
    words = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)\n{then}"
    return replace(right, text=right.text.replace("@triton.jit", f"{words}\n@triton.jit", 1))


def test_a_compilation_goes_on_beside_its_caller(compilers, tmp_path: Path) -> None:
    right, gate = source(), tmp_path / "gate"
    slow, quick = compilers.begin(held(right, gate), "sm_90"), compilers.begin(right, "sm_90")
    found = compilers.outcome(quick, right, "sm_90")
    assert isinstance(found, Binary) and not slow.done()
    gate.touch()
    came = compilers.outcome(slow, held(right, gate), "sm_90")
    assert isinstance(came, Binary) and came.cubin == found.cubin


def test_one_that_crashes_costs_those_beside_it_only_time(tmp_path: Path) -> None:
    right, gate = source(), tmp_path / "gate"
    crash, slow = held(right, gate, "os.abort()"), held(right, gate)
    with Compilers(2) as others:
        pending = [others.begin(s, "sm_90") for s in (crash, slow)]
        gate.touch()
        first, second = (
            others.outcome(p, s, "sm_90") for p, s in zip(pending, (crash, slow), strict=True)
        )
        after = others.outcome(others.begin(right, "sm_90"), right, "sm_90")
    assert "the compiler crashed" in str(first)
    assert isinstance(second, Binary) and isinstance(after, Binary)


def test_what_is_abandoned_ends_and_what_comes_next_does_not_wait(tmp_path: Path) -> None:
    right, gate = source(), tmp_path / "gate"
    with Compilers(1) as others:
        others.abandon()  # nothing is under way
        slow = others.begin(held(right, gate), "sm_90")
        waits = others.begin(right, "sm_90")
        others.abandon()
        found = others.outcome(others.begin(right, "sm_90"), right, "sm_90")
        assert isinstance(found, Binary)
        for pending in (slow, waits):
            assert pending.cancelled() or pending.exception(timeout=600) is not None
        processes = {*others._pool._processes}
        others.abandon()  # all has ended: the processes stay
        assert {*others._pool._processes} == processes


def test_nothing_is_left_of_what_is_abandoned(tmp_path: Path, monkeypatch) -> None:
    """What a compiler has started, as it starts ptxas, ends with it; its folder goes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    note = tmp_path / "note"
    words = (
        "import subprocess\n"
        "p = subprocess.Popen(['sleep', '3600'])\n"
        f"open({str(note)!r}, 'w').write(str(p.pid))\n"
        "p.wait()"
    )
    with Compilers(1) as others:
        others.begin(held(source(), tmp_path, words), "sm_90")
        while not note.exists() or not note.read_text():
            time.sleep(0.05)
        assert len([*tmp_path.glob("mcfuser-*/mcfuser-*")]) == 1
        others.abandon()
        assert not [*tmp_path.glob("mcfuser-*")]
        wait_for_the_end(int(note.read_text()))


def alive(pid: int) -> bool:
    """It runs; one that has ended, but that nobody has asked for, does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for_the_end(pid: int) -> None:
    """What sleeps for an hour ends sooner: somebody has ended it."""
    end = time.monotonic() + 300
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.05)


LARGE = """
def large(source, arch, longest):
    return b"x" * 400_000
"""
ABANDONS = """
import time
from large import large
from mcfuser.codegen.cuda import pool

pool._attempt = large
with pool.Compilers(4) as compilers:
    for i in range(30):
        for _ in range(40):
            compilers.begin(None, "sm_90")
        time.sleep(0.004 * (i % 5))
        compilers.abandon()
print("ended")
"""


def test_answers_that_are_cut_short_hold_nothing_up(tmp_path: Path) -> None:
    """An answer may be longer than a pipe holds, and its sender may be killed in the middle. No
    compiler runs the script, which has no guard against that."""
    (tmp_path / "large.py").write_text(LARGE)
    script = tmp_path / "abandons.py"
    script.write_text(ABANDONS)
    told = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False
    )
    assert (told.returncode, told.stdout) == (0, "ended\n"), told.stderr


DIES = """
import os, pickle, sys, time
from pathlib import Path
from mcfuser.codegen.cuda.pool import Compilers

source = pickle.loads(Path(sys.argv[1]).read_bytes())
with Compilers(1, longest=3600) as compilers:
    compilers.begin(source, "sm_90")
    while not Path(sys.argv[2]).exists():
        time.sleep(0.05)
    print(*compilers._pool._processes, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_compilers_end_with_whoever_asked_for_them(tmp_path: Path) -> None:
    note = tmp_path / "note"
    slow = held(source(), tmp_path, f"open({str(note)!r}, 'w').close(); time.sleep(3600)")
    (tmp_path / "source").write_bytes(pickle.dumps(slow))
    (tmp_path / "dies.py").write_text(DIES)
    told = subprocess.run(
        [sys.executable, str(tmp_path / "dies.py"), str(tmp_path / "source"), str(note)],
        stdout=subprocess.PIPE, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert told.returncode == -9
    (pid,) = map(int, told.stdout.split())
    wait_for_the_end(pid)
