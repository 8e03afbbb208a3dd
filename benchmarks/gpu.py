"""mcfuser beside its peers on the GPU at hand: the papers' tables, norms, Neptune's operators.

    python benchmarks/gpu.py [--suite tables|norms|neptune] [--only G1,S1] [--budget 300s]
        [--peers cuDNN,FlexAttention] [--slice 7] [--again] [-o FILE]

Works in slices of a few workloads: mcfuser tunes them, fused and unfused; torch's compiled peers
are made side by side; then every contender of a workload is timed alternately in one process.
A line a workload is kept in FILE (by default under benchmarks/results/), and a table beside it; a
workload that is there with the same versions is skipped, so the command may be run again until
nothing is left. Needs mcfuser[gpu] and torch.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import mcfuser
from gpu_table import table
from gpu_workloads import SUITES, Workload, workloads
from mcfuser.backends import backend_of
from mcfuser.chain import Chain, unfused_cut
from mcfuser.device import Device
from mcfuser.devices.catalogue import device_named
from mcfuser.measure.worker import Worker
from mcfuser.tune.cover import Cover, Decision, decide
from mcfuser.tune.expected import expected
from mcfuser.tune.tuned import MemoryCache, Tuned, TuneOptions
from mcfuser.tune.tuner import compare, tune

HERE = Path(__file__).parent
SLICE = {"tables": 7, "norms": 3, "neptune": 3, "shapes": 5, "float32": 5}
"""Workloads that are tuned, compiled and timed together: two minutes of them."""
THREADS = 4
"""Compiling threads of each of torch's processes."""


def main() -> None:
    given = _arguments()
    device, known = device_named(given.device), workloads(given.suite)
    names = given.only.split(",") if given.only else list(known)
    for name in names:
        if name not in known:
            sys.exit(f"'{name}' is no workload of suite {given.suite}; use {', '.join(known)}")
    for package in ("torch", "cuda", "triton"):
        if find_spec(package) is None:
            sys.exit(f"package {package} is missing; the benchmark needs torch and mcfuser[gpu]")
    short = device.name.rpartition("/")[2]
    path = given.output or HERE / "results" / f"gpu-{given.suite}-{short}.jsonl"
    begun, longest, fresh = time.monotonic(), 0.0, set[str]()
    with tempfile.TemporaryDirectory() as folder:
        while left := _without(names, fresh if given.again else _done(path)):
            start = time.monotonic()
            if start - begun + longest > given.budget:
                print(f"{len(left)} left for the next run: {', '.join(left)}")
                break
            chosen = [known[n] for n in left[: given.slice or SLICE[given.suite]]]
            made = _slice(given.suite, chosen, device, given.seed, folder, given.peers)
            _keep(path, made)
            fresh |= {m["name"] for m in made}
            longest = max(longest, time.monotonic() - start)
            if len(made) < len(chosen):
                gone = {w.name for w in chosen} - {m["name"] for m in made}
                print(f"not timed: {', '.join(sorted(gone))}")
                break
    results = _done(path)
    text = table(given.suite, [results[n] for n in known if n in results])
    path.with_suffix(".md").write_text(text)
    print(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", choices=tuple(SUITES), default="tables")
    parser.add_argument("--only", help="workloads, by name, separated by commas")
    parser.add_argument("--budget", type=lambda s: float(s.rstrip("s")), default="300s",
                        help="seconds after which no slice begins")  # fmt: skip
    parser.add_argument("--peers", help="the peers to compare with, by name; all of them if none",
                        type=lambda s: s.split(","), default=[])  # fmt: skip
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--slice", type=int, help="workloads in a slice")
    parser.add_argument("-o", "--output", type=Path, help="the file of results, a line a workload")
    parser.add_argument("--device", default="nvidia/h200")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


# --- one slice ------------------------------------------------------------------------------


def _slice(
    suite: str,
    chosen: Sequence[Workload],
    device: Device,
    seed: int,
    folder: str,
    peers: Sequence[str],
) -> list[dict[str, Any]]:
    with Worker(backend_of(device), device) as worker:
        if (why := worker.refused()) is not None:
            sys.exit(f"nothing can be measured: {why}")
        tunings = [_tuned(w, device, worker, TuneOptions(seed)) for w in chosen]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder,
                   "TORCHINDUCTOR_COMPILE_THREADS": str(THREADS)}  # fmt: skip
    begun = time.monotonic()
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        list(pool.map(lambda w: _ahead(suite, w.name, peers, environment), chosen))
    print(f"torch compiled {len(chosen)} in {time.monotonic() - begun:.0f} s", flush=True)
    kernels = [
        {"name": w.name, "covers": {n: _json(c) for n, c in t.covers.items()}}
        for w, t in zip(chosen, tunings, strict=True)
    ]
    request = {"suite": suite, "device": device.name, "seed": seed + 7, "peers": peers,
               "workloads": kernels}  # fmt: skip
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(HERE / "gpu_turns.py")], env=environment, text=True,
        input=json.dumps(request), stdout=subprocess.PIPE,
    )  # fmt: skip
    print(f"timed in {time.monotonic() - begun:.0f} s", flush=True)
    answers = {a["name"]: a for a in map(json.loads, done.stdout.splitlines())}
    found = zip(chosen, tunings, strict=True)
    return [_record(w, device, tuning, answers[w.name]) for w, tuning in found
            if w.name in answers]  # fmt: skip


@dataclass(frozen=True)
class Tuning:
    """What the product would choose for a workload, seconds until its fused kernel, and in all."""

    chain: Chain
    decision: Decision
    seconds: float
    whole: float

    @property
    def covers(self) -> dict[str, Cover]:
        """The covers that it chose from, by the table's columns."""
        unfused = unfused_cut(self.chain)
        return {
            "fused" if len(c.cut) == 1 else "unfused" if c.cut == unfused else "between": c
            for c in self.decision.covers
        }


def _tuned(w: Workload, device: Device, worker: Worker, options: TuneOptions) -> Tuning:
    begun, ended, cache = time.monotonic(), list[float](), MemoryCache()

    def search(chain: Chain) -> Tuned:
        try:
            return tune(chain, device, cache, options, worker=worker)
        finally:
            ended.append(time.monotonic())

    decision = decide(
        w.chain, device, search, lambda piece: expected(piece, device, options, worker.backend),
        lambda programs: compare(worker, w.chain, programs, options.seed),
    )  # fmt: skip
    made = Tuning(w.chain, decision, ended[0] - begun, time.monotonic() - begun)
    print(f"{w.name}: tuned in {made.seconds:.1f} s, with other covers {made.whole:.1f} s; "
          f"{decision.reason}", flush=True)  # fmt: skip
    return made


def _ahead(suite: str, name: str, peers: Sequence[str], environment: Mapping[str, str]) -> None:
    """Where compiling fails the contender fails again when it is timed, and says why there."""
    words = [sys.executable, str(HERE / "gpu_peers.py"), suite, name, *peers]
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _json(cover: Cover) -> dict[str, Any]:
    return {"cut": cover.cut, "kernels": [t.to_json() for t in cover.kernels]}


# --- results --------------------------------------------------------------------------------


def _record(
    w: Workload, device: Device, tuning: Tuning, answer: Mapping[str, Any]
) -> dict[str, Any]:
    """Medians, and quantiles over the rounds of each contender's time over mcfuser's."""
    times = {n: np.asarray(t) for n, t in answer["times"].items()}
    own = next((n for n, cover in tuning.covers.items() if cover is tuning.decision.kept), None)
    ratios = {}
    if own in times:
        for n, t in times.items():
            ratios[n] = [round(float(q), 4) for q in np.quantile(t / times[own], (0.1, 0.5, 0.9))]
    names = ("expression", "tiles", "lowering", "split", "parts", "trials")
    kernels = [{n: getattr(t, n) for n in names} for t in tuning.decision.kernels]
    return {
        "name": w.name, "group": w.group, "device": device.name, "versions": _versions(),
        "date": datetime.date.today().isoformat(), "chosen": own,
        "tuning": {"seconds": round(tuning.seconds, 2), "whole": round(tuning.whole, 2),
                   "reason": tuning.decision.reason},
        "kernels": kernels,
        "micros": {n: round(float(np.median(t)), 3) for n, t in times.items()},
        "ratios": ratios, "errors": answer["errors"], "missing": answer["missing"],
        "conditions": answer["conditions"],
    }  # fmt: skip


def _versions() -> dict[str, str]:
    """Of what the figures depend on; mcfuser's is a hash of its sources."""
    root, digest = Path(mcfuser.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    found = {n: version(n) for n in ("torch", "triton", "cuda-core")}
    return {"mcfuser": digest.hexdigest()[:12], **found}


def _done(path: Path) -> dict[str, dict[str, Any]]:
    """The latest results with the versions at hand."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = {r["name"]: r for r in map(json.loads, lines)}
    return {n: r for n, r in found.items() if r["versions"] == _versions()}


def _without(names: Sequence[str], gone: Collection[str]) -> list[str]:
    return [n for n in names if n not in gone]


def _keep(path: Path, made: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for record in made:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
