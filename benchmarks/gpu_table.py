"""The results of `benchmarks/gpu.py` as a table: microseconds, ratios over the best peer."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

OWN = ("fused", "between", "unfused")
"""One kernel, as many as the chain has pieces, and some number between."""
FLEX = "FlexAttention"
"""A peer that a user must rewrite the operator for."""
Record = Mapping[str, Any]


def table(suite: str, records: Sequence[Record]) -> str:
    """Markdown, a table for each group, and the geometric means."""
    if not records:
        return f"# {suite}: no results yet\n"
    lines = [f"# {suite.capitalize()}, mcfuser beside its peers", "", _conditions(suite, records)]
    groups: dict[str, list[Record]] = {}
    for r in records:
        groups.setdefault(r["group"], []).append(r)
    for members in groups.values():
        lines += ["", *_group(members)]
    lines += ["", f"Geometric mean over the best peer of each row: {_means(groups)}.", ""]
    if any(FLEX in r["micros"] for r in records):
        lines += [f"Without {FLEX} among the peers: {_means(groups, (FLEX,))}.", ""]
    for r in records:
        lines += [f"- {r['name']}, {n}: {why}" for n, why in r["missing"].items()]
        lines.append(f"- {r['name']}: {r['tuning']['reason']}")
    return "\n".join(lines).rstrip() + "\n"


def best(r: Record, without: Collection[str] = ()) -> str | None:
    """The fastest peer, by its median; None where there is none, or no kernel of mcfuser's."""
    others = {n: t for n, t in r["micros"].items() if n not in {*OWN, *without}}
    return min(others, key=lambda n: others[n]) if others and r["ratios"] else None


def _conditions(suite: str, records: Sequence[Record]) -> str:
    r = records[-1]
    state, versions = r["conditions"], ", ".join(f"{n} {v}" for n, v in r["versions"].items())
    clocks = sorted({x["conditions"].get("sm_mhz", 0) for x in records})
    held = sorted({why for x in records for why in x["conditions"].get("throttled", ())})
    others = max(x["conditions"].get("others", 0) for x in records)
    return (
        f"`python benchmarks/gpu.py --suite {suite}`, {r['date']}, {state['gpu']}, driver "
        f"{state.get('driver', '?')}, CUDA {state.get('cuda driver', '?')}; {versions}. SM clock "
        f"{clocks[0]} to {clocks[-1]} MHz, held down by {', '.join(held) or 'nothing'}; {others} "
        "other processes on the GPU. Microseconds a call inside replayed CUDA graphs, warm L2, "
        "medians of rounds in which all contenders of a row take turns in one process; ratio: the "
        "best peer's time over mcfuser's, with its 10 % and 90 % quantiles over the rounds. "
        "mcfuser runs fused, unfused or cut between, whichever its own tuning chose (*)."
    )


def _group(members: Sequence[Record]) -> list[str]:
    peers = list(dict.fromkeys(n for r in members for n in r["micros"] if n not in OWN))
    own = [n for n in OWN if n != "between" or any(n in r["micros"] for r in members)]
    heads = ["", *own, *peers, "ratio", "10 % .. 90 %", "best peer", "tuned, s"]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for r in members:
        mine = [_cell(r, n) + (" *" if n == r["chosen"] else "") for n in own]
        cells = [r["name"], *mine, *(_cell(r, n) for n in peers), *_ratio(r)]
        lines.append(f"| {' | '.join(cells)} | {r['tuning']['seconds']:.1f} |")
    return lines


def _cell(r: Record, name: str) -> str:
    return f"{r['micros'][name]:.2f}" if name in r["micros"] else "-"


def _ratio(r: Record) -> tuple[str, str, str]:
    if (name := best(r)) is None:
        return "-", "-", "-"
    low, ratio, high = r["ratios"][name]
    return f"**{ratio:.2f}**", f"{low:.2f} .. {high:.2f}", name


def _means(groups: Mapping[str, Sequence[Record]], without: Collection[str] = ()) -> str:
    found = {
        group: [r["ratios"][n][1] for r in members if (n := best(r, without)) is not None]
        for group, members in groups.items()
    }
    if len(found) > 1:
        found["all"] = [ratio for ratios in found.values() for ratio in ratios]
    return "; ".join(f"{group} {_mean(ratios)}" for group, ratios in found.items() if ratios)


def _mean(ratios: Sequence[float]) -> str:
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"**{mean:.2f}** (least {min(ratios):.2f}, {len(ratios)} rows)"
