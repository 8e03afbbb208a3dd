"""In place of `mcfuser compile` and `mcfuser run`, for the tests of batches: what it does is what
the model's bytes say. It notes each compilation in the file `begun` beside the model, and each run
in `ran`. A file `milliseconds` beside the model has the time of a run. Its words are

    compile MODEL -o FOLDER ..
    run FOLDER --check MODEL --json
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

ANSWER = {"error": 1e-7, "tolerance": 1e-4, "mcfuser_seconds": 1e-3, "onnxruntime_seconds": 2e-3}
REPORT = {
    "chains": [{"fused": True}, {"fused": False}],
    "inputs": [{"dtype": "float32"}],
    "outputs": [{"dtype": "float32"}],
}


def pinned(what: str, device: str) -> dict[str, object]:
    """What mcfuser.lock keeps of the compilation: a chain by the model's bytes."""
    chain = {"name": what, "axes": "m=4", "types": "A float32", "operators": ["B[m] = A[m]"]}
    made = {"device": device, "toolchain": {"tvm": "1"}, "sources": "s"}
    return made | {"chains": {f"key of {what}": chain}}


def compile_(model: Path, folder: Path) -> None:
    what = model.read_bytes()
    with (model.parent / "begun").open("a") as file:
        file.write(f"{model.name} {os.getpid()}\n")
    if what == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == b"bug":
        raise RuntimeError("a bug")
    if what == b"refused":
        print("mcfuser: the model has no operators", file=sys.stderr)
        sys.exit(2)
    while what == b"wait" and not (model.parent / "gate").exists():
        time.sleep(0.05)
    (folder / "module.so").write_bytes(b"module of " + what)
    device = sys.argv[sys.argv.index("--device") + 1]
    if "--locked" in sys.argv:
        locked = Path(sys.argv[sys.argv.index("--locked") + 1]).read_text()
        if f"key of {what.decode()}" not in locked:
            print(f"mcfuser: chain '{what.decode()}' cannot be built as it is", file=sys.stderr)
            sys.exit(2)
    pins = {} if what == b"unpinned" else {"lock": pinned(what.decode(), device)}
    beside = sorted(p.name for p in model.parent.glob(f"{model.name}.data"))
    (folder / "report.json").write_text(json.dumps({**REPORT, **pins, "external": beside}))


def run(folder: Path, model: Path) -> None:
    with (model.parent / "ran").open("a") as file:
        file.write(f"{folder.name}\n")
    what = model.read_bytes()
    if what == b"dies later":
        sys.exit(-signal.SIGKILL)
    error = {b"wrong": 0.5, b"infinite": float("inf"), b"nan": float("nan")}.get(what, 1e-7)
    other: dict[str, object] = {"onnxruntime_seconds": None} if what == b"elsewhere" else {}
    if (folder / "module.so").read_bytes() == b"module of slow":
        other |= {"mcfuser_seconds": 3e-3}
    times = model.parent / "milliseconds"
    if times.exists():
        other |= {"mcfuser_seconds": float(times.read_text()) / 1e3}
    print(json.dumps({**ANSWER, **other, "error": error}))
    sys.exit(not error <= ANSWER["tolerance"])  # as the command does


def main() -> None:
    if sys.argv[1] == "compile":
        compile_(Path(sys.argv[2]), Path(sys.argv[4]))
    else:
        run(Path(sys.argv[2]), Path(sys.argv[4]))
