"""The demo model on this CPU: compile times cold and warm, run time beside onnxruntime.

    python benchmarks/cpu.py [--layers 2] [--hidden 256] [--sequence 128] [--write]

`--write` keeps the table under benchmarks/results/. Targets: cold under 60 s, warm under 10 s, at
most 2.5 times onnxruntime's time, on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from mcfuser.compile import compile_model
from mcfuser.devices.catalogue import device_named
from mcfuser.graph.check import check
from mcfuser.tune.tuned import MemoryCache, TuneOptions

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default="2")
    parser.add_argument("--hidden", default="256")
    parser.add_argument("--sequence", default="128")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        make = [sys.executable, str(HERE.parent / "examples" / "bert.py"), str(path)]
        sizes = ["--layers", given.layers, "--hidden", given.hidden, "--sequence", given.sequence]
        subprocess.run([*make, *sizes], check=True)
        lines = measured(path, Path(folder), given)
    print("\n".join(lines))
    if given.write:
        name = f"cpu-{given.layers}x{given.hidden}x{given.sequence}.md"
        (HERE / "results" / name).write_text("\n".join(lines) + "\n")


def measured(path: Path, folder: Path, given: argparse.Namespace) -> list[str]:
    model, cache, device = path.read_bytes(), MemoryCache(), device_named("cpu")
    seconds = []
    for _ in ("cold", "warm"):
        begun = time.perf_counter()
        artifact = compile_model(model, device, cache, TuneOptions(), {})
        seconds.append(time.perf_counter() - begun)
    (folder / "module.so").write_bytes(artifact.module)
    runs = [check(folder, model, {}, seed) for seed in range(5)]
    best = sorted(runs, key=lambda r: r.seconds / r.reference_seconds)[len(runs) // 2]
    versions = ", ".join(f"{n} {version(n)}" for n in ("apache-tvm", "onnxruntime", "numpy"))
    lines = [
        f"# {given.layers} layers, hidden {given.hidden}, {given.sequence} tokens",
        "",
        f"`python benchmarks/cpu.py --layers {given.layers} --hidden {given.hidden} "
        f"--sequence {given.sequence}`, {datetime.date.today()}, {device.arch}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}",
        "",
        "| | |",
        "| --- | --- |",
        f"| compile, cold | {seconds[0]:.1f} s |",
        f"| compile, warm cache | {seconds[1]:.1f} s |",
        f"| mcfuser, a run | {best.seconds * 1e3:.3f} ms |",
        f"| onnxruntime, a run | {best.reference_seconds * 1e3:.3f} ms |",
        f"| ratio, median of five checks | {best.seconds / best.reference_seconds:.2f} |",
        f"| ratios | {', '.join(f'{r.seconds / r.reference_seconds:.2f}' for r in runs)} |",
        f"| norm-wise relative error, worst | {max(r.error for r in runs):.1e} |",
        "",
        "| chain | fused | time | unfused | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for c in artifact.report["chains"]:
        times = [c["fused_seconds"], c["unfused_seconds"]]
        shown = " | ".join(f"{t * 1e6:.1f} us" if t is not None else "-" for t in times)
        lines.append(
            f"| {c['name']} x{len(c['places'])} | {'yes' if c['fused'] else 'no'} | {shown} "
            f"| {c['reason']} |"
        )
    return lines


if __name__ == "__main__":
    main()
