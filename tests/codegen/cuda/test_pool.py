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
from mcfuser.codegen.cuda.pool import TRIES, Compilers
from mcfuser.codegen.triton import TritonSource, generate
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.prune import distinct, prune, space
from tests.support.compiled import compile_all
from tests.support.processes import alive, eventually


def source():
    chain = gemm(1, 64, 64, 32, 32, "float16")
    plan, tiles = distinct(prune(space(chain), CATALOGUE["nvidia/h200"])[0]).tables[0]
    schedule = plan.schedule(dict(zip(plan.axes, (int(n) for n in tiles[0]), strict=True)))
    return generate(schedule, "kernel", TritonKnobs(4, 2))


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


def test_sources_are_compiled_side_by_side_and_may_crash() -> None:
    named = [replace(source(), text=f"# {i}\n{source().text}") for i in range(4)]
    named[1] = replace(named[1], text="import os\nos.abort()\n")
    named[2] = replace(named[2], text="nonsense(")
    made = compile_all(named, "sm_90", 2)
    assert [b.name if isinstance(b, Binary) else str(b) for b in made] == [
        "kernel",
        "the compiler crashed",
        "Triton does not compile it: SyntaxError: '(' was never closed (kernel.py, line 1)",
        "kernel",
    ]


def held(right: TritonSource, gate: Path, then: str = "pass") -> TritonSource:
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
        processes = others.processes
        others.abandon()  # all has ended: the processes stay
        assert others.processes == processes


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
        assert eventually(lambda: not alive(int(note.read_text())))


ABANDONS = """
import pickle, sys, time
from pathlib import Path
from mcfuser.codegen.cuda.pool import Compilers

source = pickle.loads(Path(sys.argv[1]).read_bytes())
with Compilers(4) as compilers:
    for i in range(30):
        for _ in range(40):
            compilers.begin(source, "sm_90")
        time.sleep(0.02 * (i % 5))
        compilers.abandon()
print("ended")
"""


@pytest.mark.thorough
def test_answers_that_are_cut_short_hold_nothing_up(tmp_path: Path) -> None:
    """An answer may be longer than a pipe holds, and its sender may be killed in the middle. No
    compiler runs the script, which has no guard against that."""
    right = source()
    large = replace(right, text="raise ValueError('x' * 400_000)\n" + right.text)
    (tmp_path / "source").write_bytes(pickle.dumps(large))
    script = tmp_path / "abandons.py"
    script.write_text(ABANDONS)
    told = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "source")],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
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
    print(*compilers.processes, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_what_takes_too_long_is_ended_and_a_new_process_goes_on(tmp_path: Path) -> None:
    """Whatever it is doing: here, C code that looks at no signal."""
    right = source()
    busy = replace(right, text="sum(range(10**15))\n" + right.text)
    with Compilers(1, longest=3600) as others:
        assert isinstance(dict(others.compile([right], "sm_90"))[0], Binary)
        (first,) = others.processes
        others.longest = 1
        assert str(dict(others.compile([busy], "sm_90"))[0]) == "it took the compiler too long"
        assert eventually(lambda: not alive(first), 10.0)
        others.longest = 3600
        assert isinstance(dict(others.compile([right], "sm_90"))[0], Binary)


def test_what_a_compiler_that_crashes_has_started_ends_too(tmp_path: Path) -> None:
    note = tmp_path / "note"
    words = (
        "import os, subprocess\n"
        "p = subprocess.Popen(['sleep', '3600'])\n"
        f"open({str(note)!r}, 'a').write(f'{{p.pid}} ')\n"
        "os.abort()"
    )
    with Compilers(1) as others:
        (made,) = dict(others.compile([held(source(), tmp_path, words)], "sm_90")).values()
        assert "crashed" in str(made)
        started = [int(word) for word in note.read_text().split()]
        assert len(started) == TRIES
        assert eventually(lambda: not any(map(alive, started)))


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
    assert eventually(lambda: not alive(pid))
