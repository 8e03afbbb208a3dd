"""How long a batch of four models takes: cold, unchanged, killed and resumed, one model changed.

    python benchmarks/batch_zoo.py [--trials 16] [--jobs 2] [--results FILE]

Four BERT-like models of different sizes are compiled and checked for the CPU by `mcfuser batch`,
with an empty data folder:

- cold: nothing is there;
- unchanged: the same again;
- killed: in other empty folders, the batch's process is killed (SIGKILL) once two models are done;
- resumed: the same again after that;
- changed: once more, after one model was replaced by another.

Prints and keeps the seconds of each, those that it took of the processor, and the models that it
compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from service_load import model

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results" / "batch-zoo.json"
SIZES = {"tiny": 64, "small": 96, "medium": 128, "large": 160}
"""The models, and their widths."""
OTHER = 192
"""The width of the model that takes another's place."""


@dataclass(frozen=True)
class Zoo:
    """A folder of models, the report's folder and the data folder of a batch."""

    folder: Path
    jobs: int

    def made(self, trials: int) -> None:
        self.folder.mkdir()
        for name, width in SIZES.items():
            model(self.folder / f"{name}.onnx", ROOT, width, 1)
        files = json.dumps([f"{name}.onnx" for name in SIZES])
        (self.folder / "zoo.toml").write_text(f"[[models]]\nfiles = {files}\ntrials = {trials}\n")

    def started(self) -> subprocess.Popen[bytes]:
        places = [str(ROOT / part) for part in ("", "db", "service")]
        return subprocess.Popen(
            [sys.executable, "-m", "mcfuser.cli", "batch", "zoo.toml", "-o", "report",
             "--jobs", str(self.jobs)],
            cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places),
                 "MCFUSER_DATA": str(self.folder / "data")},
        )  # fmt: skip

    def outcomes(self) -> int:
        return len(list((self.folder / "report").glob("entries/*/outcome.json")))

    def ran(self) -> dict[str, Any]:
        """One batch: its seconds, exit status, and the models that were compiled."""
        begun, before = time.monotonic(), processor_seconds()
        status = self.started().wait()
        seconds, processor = time.monotonic() - begun, processor_seconds() - before
        report = json.loads((self.folder / "report" / "report.json").read_text())
        compiled = [e["name"] for e in report["entries"] if not e["unchanged"]]
        return {"seconds": round(seconds, 1), "processor_seconds": round(processor, 1),
                "exit": status, "compiled": compiled,
                "states": [e["state"] for e in report["entries"]]}  # fmt: skip

    def killed(self) -> dict[str, Any]:
        """A batch that is killed once half of its models are done."""
        begun = time.monotonic()
        process = self.started()
        while self.outcomes() < len(SIZES) // 2 and process.poll() is None:
            time.sleep(0.05)
        process.kill()
        return {
            "seconds": round(time.monotonic() - begun, 1), "exit": process.wait(),
            "compiled": self.outcomes(),
        }  # fmt: skip


def processor_seconds() -> float:
    """Of all processes that this one has waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="a batch of four models")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1), "jobs": options.jobs,
        "trials": options.trials,
    }  # fmt: skip
    with TemporaryDirectory(prefix="mcfuser-zoo-") as name:
        zoo = Zoo(Path(name) / "first", options.jobs)
        zoo.made(options.trials)
        result |= {"cold": zoo.ran(), "unchanged": zoo.ran()}
        zoo = Zoo(Path(name) / "second", options.jobs)
        zoo.made(options.trials)
        result |= {"killed": zoo.killed(), "resumed": zoo.ran()}
        model(zoo.folder / "tiny.onnx", ROOT, OTHER, 1)
        result["changed"] = zoo.ran()
    result["load_after"] = round(os.getloadavg()[0], 1)
    for name in ("cold", "unchanged", "killed", "resumed", "changed"):
        one = result[name]
        of = f" ({one['processor_seconds']} of the processor)" if "processor_seconds" in one else ""
        print(f"{name:10}{one['seconds']:8} s{of}, exit {one['exit']}, compiled {one['compiled']}")
    options.results.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
