"""What `benchmarks/models.py` found, as tables; and the figures that they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OWN = "mcfuser"
WHOLE = "model"
"""Stands for all contenders where a model's whole process failed."""
Record = Mapping[str, Any]

# --- figures --------------------------------------------------------------------------------


def spread(times: Sequence[float], own: Sequence[float] | None) -> dict[str, Any]:
    """The median in seconds with its 10 % and 90 % quantiles, and those of the ratio over `own`,
    round by round."""
    found: dict[str, Any] = {"seconds": _quantiles(np.asarray(times))}
    if own is not None:
        found["ratio"] = _quantiles(np.asarray(times) / np.asarray(own))
    return found


def _quantiles(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{q:.5g}") for q in np.quantile(values, (0.1, 0.5, 0.9))]


def kernels(chains: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Launches of mcfuser's kernels in one run, by what they are, and chains that are TVM's.

    "fused" are kernels of chains that run in fewer kernels than they have pieces, "apart" those of
    other chains with several kernels, "single" those that are their chain's only one.
    """
    found = dict.fromkeys(("fused", "apart", "single", "left to TVM"), 0)
    for chain in chains:
        count, places = len(chain["kernels"]), len(chain["places"])
        if not count:
            found["left to TVM"] += places
        else:
            kind = "fused" if chain["fused"] else "apart" if count > 1 else "single"
            found[kind] += count * places
    return found


# --- tables ---------------------------------------------------------------------------------


def table(document: Record) -> str:
    """Markdown: times of all contenders, what compiling took, and what failed."""
    records = document["models"]
    names = list(dict.fromkeys(n for r in records for n in (*r.get("times", ()), *r["missing"])))
    peers = [n for n in names if n not in (OWN, WHOLE)]
    heads = ["milliseconds", OWN, *peers, "best peer / mcfuser", "error", "outside chains"]
    lines = [_conditions(document), "", *_head(heads)]
    for r in records:
        cells = [r["name"], *(_time(r, n) for n in (OWN, *peers)), _ratio(r), _error(r)]
        lines.append(_row([*cells, _outside(r)]))
    heads = ["compiling", "tuning, s", "building, s", "fused", "apart", "single", "left to TVM",
             "other calls", "memory, GiB"]  # fmt: skip
    lines += ["", *_head(heads), *(_row(_compiling(r)) for r in records if "compiled" in r)]
    lines.append("")
    for r in records:
        lines += [f"- {r['name']}, {n}: {why}" for n, why in r["missing"].items()]
        lines += [f"- {r['name']}, {n}: {note}" for n, note in r.get("notes", {}).items()]
    return "\n".join(lines).rstrip() + "\n"


def outside(document: Record) -> str:
    """Markdown: what no chain computes, by model."""
    lines = [*_head(["", "products", "in chains", "in chains of 2 or more", "chains"])]
    found = [(r["name"], r["lifted"]) for r in document["models"] if "lifted" in r]
    for name, one in found:
        counts = (one["products"], one["covered"], one["fused"], one["chains"])
        lines.append(_row([name, *map(str, counts)]))
    for name, one in found:
        lines += ["", f"{name}, outside chains:", ""]
        every = {**one["outside"], **{f"view {n}": c for n, c in one["views"].items()}}
        lines += [f"- {c} x {n}" for n, c in every.items()] or ["- nothing"]
    lines += ["", *(f"- {r['name']}, {n}: {why}" for r in document["models"]
                    for n, why in r["missing"].items())]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def best(r: Record) -> str | None:
    """The fastest peer, by its median; None where none or mcfuser was not timed."""
    times = {n: t["seconds"][1] for n, t in r.get("times", {}).items() if n != OWN}
    return min(times, key=lambda n: times[n]) if times and OWN in r["times"] else None


def _conditions(document: Record) -> str:
    versions = ", ".join(f"{n} {v}" for n, v in document["versions"].items())
    return (
        f"`python benchmarks/models.py --device {document['device']} --precision "
        f"{document['precision']}`, {document['date']}, {document['machine']}; {versions}. "
        "Medians of rounds in which all contenders of a row take turns in one process, with 10 % "
        "and 90 % quantiles; inputs are where the device reads them. A ratio is the fastest peer's "
        "time over mcfuser's, round by round. Errors are norm-wise, against torch in float32."
    )


def _head(cells: Sequence[str]) -> list[str]:
    return [_row(cells), f"|{' --- |' * len(cells)}"]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _time(r: Record, name: str) -> str:
    if name not in r.get("times", {}):
        return "-"
    low, middle, high = (1e3 * t for t in r["times"][name]["seconds"])
    return f"{middle:.4g} ({low:.4g} .. {high:.4g})"


def _ratio(r: Record) -> str:
    if (name := best(r)) is None:
        return "-"
    low, ratio, high = r["times"][name]["ratio"]
    return f"**{ratio:.2f}** ({low:.2f} .. {high:.2f}), {name}"


def _error(r: Record) -> str:
    error = r.get("errors", {}).get(OWN)
    return "-" if error is None else f"{error:.1e}"


def _outside(r: Record) -> str:
    share = r.get("spent", {}).get("outside_share")
    return "-" if share is None else f"{100 * share:.0f} %"


def _compiling(r: Record) -> list[str]:
    found, calls = r["compiled"], r.get("spent", {}).get("outside", {}).get("calls")
    counts = [str(found["kernels"][n]) for n in ("fused", "apart", "single", "left to TVM")]
    seconds = [f"{found['seconds'][n]:.1f}" for n in ("tuning", "building")]
    memory = max(r["peak_rss"]["compiled"], r["peak_rss"]["child"]) / 2**30
    return [r["name"], *seconds, *counts, "-" if calls is None else str(calls), f"{memory:.2f}"]
