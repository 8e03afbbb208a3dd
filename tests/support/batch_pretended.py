"""In place of `mcfuser compile` and `mcfuser run`, for the tests of batches: what it does is what
the model's bytes say. It notes each compilation in the file `begun` beside the model. Its words are

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
    beside = sorted(p.name for p in model.parent.glob(f"{model.name}.data"))
    (folder / "report.json").write_text(json.dumps({**REPORT, "external": beside}))


def run(model: Path) -> None:
    what = model.read_bytes()
    if what == b"dies later":
        sys.exit(-signal.SIGKILL)
    error = {b"wrong": 0.5, b"infinite": float("inf"), b"nan": float("nan")}.get(what, 1e-7)
    other = {"onnxruntime_seconds": None} if what == b"elsewhere" else {}
    print(json.dumps({**ANSWER, **other, "error": error}))


def main() -> None:
    if sys.argv[1] == "compile":
        compile_(Path(sys.argv[2]), Path(sys.argv[4]))
    else:
        run(Path(sys.argv[4]))
