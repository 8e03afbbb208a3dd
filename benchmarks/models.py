"""Whole models: compiled by mcfuser, and timed beside their peers in turns.

    python benchmarks/models.py [--only bert-base-128,vit-b16] [--device cpu|cuda] [--peers torch]
        [--precision float16] [--timeout 120] [--cache DIR] [--lift] [-o FILE]

Each model is a torch module with seeded random weights, exported to ONNX and compiled as the
command does; on a GPU it runs as a CUDA graph. Every contender is checked against torch's float32
outputs. Results are kept in FILE (by default under benchmarks/results/), a table beside it. What
fails is named in the table and spoils nothing else. Needs torch; takes transformers' models where
they are installed. With --lift nothing is compiled: it says what no chain computes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mcfuser
from mcfuser.backends import backend_of
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import InputError
from mcfuser.revision import source_hash
from models_table import WHOLE, outside, table

HERE = Path(__file__).parent
GPU = "nvidia/h200"
"""The device that "cuda" stands for."""


def main() -> None:
    given = _arguments()
    if find_spec("torch") is None:
        sys.exit("package torch is missing; the benchmark needs it: pip install torch")
    from models_peers import PEERS
    from models_zoo import zoo

    device = _device(given.device)
    host = backend_of(device_named(device)).on_host
    known = zoo()
    names = _chosen("model", given.only, tuple(n for n in known if n != "tiny"), tuple(known))
    peers = _chosen("peer", given.peers, PEERS[host], PEERS[host])
    precision = given.precision or ("float32" if host else "float16")
    short = device.rpartition("/")[2]
    path = given.output or HERE / "results" / f"models-{short}-{precision}.json"
    document = _begun(path, device, precision, host)
    for name in names:
        print(name, file=sys.stderr, flush=True)
        origin = given.origin or known[name].origin()
        request = {
            "model": name, "device": device, "precision": precision, "origin": origin,
            "peers": peers, "timeout": given.timeout, "cache": given.cache,
            "threads": given.threads, "seed": given.seed, "lift": given.lift,
        }  # fmt: skip
        record = {"name": name, "origin": origin, "timeout": given.timeout}
        document = _with(document, record | _answered(request, given.limit, given.cache))
        if not given.lift:
            _write(path, document)
    chosen = {**document, "models": [r for r in document["models"] if r["name"] in names]}
    print(outside(chosen) if given.lift else table(chosen))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="models, by name, separated by commas; all if none")
    parser.add_argument("--device", default="cpu", help=f"cpu, cuda ({GPU}) or a GPU's name")
    parser.add_argument("--precision", choices=("float16", "float32"),
                        help="float16 on a GPU and float32 on a CPU, if none is given")  # fmt: skip
    parser.add_argument("--peers", help="peers, by name, separated by commas; all if none")
    parser.add_argument("--timeout", type=_seconds, default=120.0, help="seconds of tuning a model")
    parser.add_argument("--limit", type=_seconds, default=1800.0, help="seconds for one model")
    parser.add_argument("--cache", default="", help="a folder that keeps kernels between runs")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1,
                        help="threads of every contender on a CPU")  # fmt: skip
    parser.add_argument("--origin", choices=("transformers", "own"), help="whose modules to take")
    parser.add_argument("--lift", action="store_true", help="tell what no chain computes, no more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="the file of results")
    return parser.parse_args()


def _seconds(text: str) -> float:
    return float(text.rstrip("s"))


def _device(name: str) -> str:
    """The device's name in the catalogue; ends the process where there is none."""
    try:
        return device_named(GPU if name == "cuda" else name).name
    except InputError as error:
        sys.exit(str(error))


def _chosen(
    what: str, given: str | None, default: Sequence[str], known: Sequence[str]
) -> list[str]:
    names = given.split(",") if given else list(default)
    for name in names:
        if name not in known:
            sys.exit(f"{what} '{name}' is not known; use {', '.join(known)}")
    return names


def _answered(request: Mapping[str, Any], limit: float, cache: str) -> dict[str, Any]:
    """What the model's process says; its end, where it says nothing, is a reason like others."""
    environment = dict(os.environ)
    if cache:
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(Path(cache).absolute() / "inductor")
    words = [sys.executable, str(HERE / "models_turns.py")]
    try:
        done = subprocess.run(words, env=environment, text=True, input=json.dumps(request),
                              stdout=subprocess.PIPE, timeout=limit)  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"missing": {WHOLE: f"it took longer than {limit:g} s; see --limit"}}
    lines = done.stdout.splitlines()
    if not lines:
        why = f"its process ended with {done.returncode} and said why on standard error"
        return {"missing": {WHOLE: why}}
    found: dict[str, Any] = json.loads(lines[-1])
    return {"missing": {}} | found


# --- results --------------------------------------------------------------------------------


def _begun(path: Path, device: str, precision: str, host: bool) -> dict[str, Any]:
    """The document of a run, with the models that a run of the same versions has left in a file."""
    fresh = {
        "date": datetime.date.today().isoformat(), "device": device, "precision": precision,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}", "versions": _versions(host),
        "models": [],
    }  # fmt: skip
    if not path.exists():
        return fresh
    before = json.loads(path.read_text())
    same = all(before[n] == fresh[n] for n in ("device", "precision", "machine", "versions"))
    return {**fresh, "models": before["models"]} if same else fresh


def _with(document: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    others = [r for r in document["models"] if r["name"] != record["name"]]
    return {**document, "models": [*others, record]}


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    path.with_suffix(".md").write_text(table(document))


def _versions(host: bool) -> dict[str, str]:
    """Of what the figures depend on; mcfuser's is a hash of its sources."""
    root = Path(mcfuser.__file__).parent
    found = {"mcfuser": source_hash(sorted(root.rglob("*.py")))[:12]}
    packages = ("onnxruntime", "openvino") if host else ("triton",)
    for name in ("apache-tvm", "torch", "transformers", *packages):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
