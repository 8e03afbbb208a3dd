"""Prints reports, kernels, spaces and devices as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcfuser.algebra.dependence import Dependence, dependences, through_maps
from mcfuser.algebra.roll import Refusal, Roll
from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.expr import reads, text
from mcfuser.space.program import Program, program
from mcfuser.space.prune import PruneStep, prune, space
from mcfuser.tune.budget import Budget
from mcfuser.tune.tuned import Tuned

if TYPE_CHECKING:
    from mcfuser.explain import ExplainedOperator, ExplainedRegion, ModelExplanation


def show(report: Mapping[str, Any], out: Console) -> None:
    """Prints the report of a compilation: its chains, then the products that share no kernel, and
    why."""
    table = _table("chain", "operators", "kernel", "time", "unfused", "error", "result")
    for number, chain in enumerate(report["chains"], 1):
        kernels = chain["kernels"]
        table.row(
            f"{number}. {chain['name']}" + _times_used(len(chain["places"])),
            " ".join(o.split("[")[0] for o in chain["operators"]),
            "\n".join(map(_candidate, kernels)) or "TVM's",
            _micro(chain["fused_seconds"]),
            _micro(chain["unfused_seconds"]),
            _error(chain),
            ("fused, " if chain["fused"] else "") + chain["reason"],
        )
    out.print(table)
    alone: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for p in report["products"]:
        if p["reason"] is not None:
            alone.setdefault((p["chain"], *p["shape"].values()), []).append(p)
    if alone:
        table = _table("product", "shape", "phi", "P/W", "why it shares no kernel")
        for group in alone.values():
            p, s = group[0], group[0]["shape"]
            table.row(
                p["name"] + _times_used(len(group)),
                f"{s['batch']} x {s['rows']} x {s['depth']} x {s['columns']}",
                f"{p['phi']:.1f}",
                f"{p['bound']:.1f}",
                p["reason"],
            )
        out.print(table)
    busy = [c for c in report["chains"] if c["conditions"].get("busy")]
    if busy:
        out.print(
            f"{len(busy)} of {len(report['chains'])} chains were compared on a busy machine",
            highlight=False,
        )
    _show_buckets(report, out)
    _show_precision(report.get("precision"), out)
    _show_in_place(report.get("in_place", {}), out)
    _show_check(report, out)
    kernels = [k for c in report["chains"] for k in c["kernels"]]
    cut_short = {k["key"]: k["search"] for k in kernels if k["ended"] != "settled"}
    for words, count in Counter(cut_short.values()).items():
        out.print(f"the search of {count} kernel{'s' * (count > 1)} was {words}", highlight=False)
    stale = {k["key"]: k["stale"] for k in kernels if k.get("stale")}
    for words, count in Counter(stale.values()).items():
        told = f"{count} kernel{'s are' if count > 1 else ' is'} stale: {words}"
        _plain(f"{told}; mcfuser cache refresh measures again", out)
    seconds = report["seconds"]
    out.print(
        f"{report['device']} ({report['arch']}): times {report['times']}; tuned in "
        f"{seconds['tuning']:.1f} s, built in {seconds['building']:.1f} s",
        highlight=False,
    )


def _show_buckets(report: Mapping[str, Any], out: Console) -> None:
    """Prints the shapes that a model with ranges was compiled for."""
    if "buckets" not in report:
        return
    names = [e["name"] for e in report["extents"]]
    table = _table("bucket", *names, "chains")
    for number, b in enumerate(report["buckets"], 1):
        ends = [(b["low"][n], b["high"][n]) for n in names]
        spans = (f"{low}..{high}" if low < high else str(high) for low, high in ends)
        table.row(str(number), *spans, " ".join(str(c + 1) for c in b["chains"]))
    out.print(table)
    padding = report["padding"]
    if padding["buckets"] is not None:
        many, one = padding["buckets"], padding["one_bucket"]
        _plain(
            f"padding is predicted to make an average run take {many:.2f} times as long; with one "
            f"bucket {one:.2f} times",
            out,
        )


def _show_precision(precision: Mapping[str, Any] | None, out: Console) -> None:
    """Prints how a float32 model was narrowed."""
    if precision is None:
        return
    words = "products of {dtype} operands: {narrow_products}, left in float32: "
    words += "{float32_products}; other operators in float32: {float32_operators}"
    _plain(words.format(**precision), out)
    if precision["note"] is not None:
        _plain(precision["note"], out)


def _show_in_place(pairs: Mapping[str, str], out: Console) -> None:
    """Prints which outputs are written into the memory of inputs."""
    for name, output in pairs.items():
        _plain(f"'{name}' is updated in place: output '{output}' is the same memory", out)


def _show_check(report: Mapping[str, Any], out: Console) -> None:
    """Prints what the comparison with onnxruntime found."""
    check, narrowed = report.get("check", {}), report.get("precision") is not None
    if "error" in check:
        at = f" at {len(check['shapes'])} shapes" if "shapes" in check else ""
        _plain(f"agrees with onnxruntime on random inputs{at}: error {check['error']:.1e}", out)
        for name, error in check["outputs"].items() if narrowed else ():
            _plain(f"  {name}: error {error:.1e} against the float32 model", out)
    elif "skipped" in check:
        _plain(f"not compared with onnxruntime: {check['skipped']}", out)


def _how_it_ended(budget: Budget) -> str:
    return str(budget) if budget.ended == "settled" else f"was {budget}"


def _times_used(count: int) -> str:
    return f" (x{count})" if count > 1 else ""


def _error(chain: Mapping[str, Any]) -> str:
    errors = [k["error"] for k in chain["kernels"] if k["error"] is not None]
    return f"{max(errors):.0e}" if errors else "-"


def show_kernel(tuned: Tuned, out: Console) -> None:
    """Prints a tuned kernel without its source."""
    table = _table("kernel", "")
    table.row("chain", str(tuned.chain))
    table.row("device", tuned.device)
    table.row("expression", tuned.expression)
    table.row("tiles", _tiles(tuned.tiles))
    if tuned.split is not None:
        table.row("split", f"{tuned.split} in {tuned.parts} parts")
    table.row("lowering", _tiles(tuned.lowering))
    table.row("predicted", _micro(tuned.predicted))
    table.row("measured", _micro(tuned.measured) if tuned.measured else "not measured")
    if "next" in tuned.conditions:
        low, high = tuned.conditions["next"]
        words = f"the next one takes {low:.2f} to {high:.2f} times as long"
        table.row("sure", f"{tuned.conditions['sure']:.3f}: {words}")
    if tuned.conditions.get("busy"):
        table.row("machine", "busy while the kernel was timed")
    table.row("error", f"{tuned.error:.1e}" if tuned.error is not None else "not measured")
    table.row("candidates", ", ".join(f"{k} {v:,}" for k, v in tuned.stages.items()))
    table.row("trials", f"{tuned.trials}, the search {_how_it_ended(tuned.budget)}")
    if tuned.missed:
        table.row("searched, for", tuned.missed)
    if tuned.stale:
        table.row("stale", tuned.stale)
    for reason, count in tuned.failed.items():
        table.row("failed", f"{count} x {reason}")
    for name, number in tuned.resources.items():
        table.row(name, str(number))
    out.print(table)


def show_space(document: Mapping[str, Any], steps: Sequence[PruneStep], out: Console) -> None:
    """Prints the sizes of a chain's space, before and after each pruning step."""
    table = _table("step", "expressions", "candidates", "")
    table.row("space", str(document["expressions"]), f"{document['candidates']:,}", "")
    for step in steps:
        shown = " ".join(step.expressions[:6]) + (" .." if len(step.expressions) > 6 else "")
        table.row(step.rule, str(len(step.expressions)), f"{step.candidates:,}", shown)
    table.row("distinct", "", f"{document['distinct']:,}", "equal statements merged")
    table.row("split", "", f"{document['split']:,}", "where blocks are few, loops in parts")
    out.print(table)
    out.print(f"{document['chain']} on {document['device']}", highlight=False)


def show_algebra(chain: Chain, device: Device, out: Console) -> None:
    """Prints how each dependence between the reductions of a chain is resolved, and the loop
    nests."""
    out.print("[bold]chain[/bold]")
    _plain(str(chain), out)
    ready = program(chain)
    if ready.chain != chain:
        words = "empty rows guarded, exponentials to base two, masks taken once"
        out.print(f"\n[bold]made ready[/bold]: {words}, what does not vary hoisted")
        _plain(str(ready.chain), out)
    resolved = list(_resolved(chain, ready))
    if not resolved:
        out.print("\nno reduction needs another one over the same axis")
    for d, rolls in resolved:
        _plain(f"\n{d.target} needs {d.moving} over {d.axis}", out)
        if not rolls:
            _plain(f"  hoist: what waits for {d.moving} leaves the sum", out)
        for r in rolls:
            _plain(_roll_text(r), out)
    pruned, _ = prune(space(chain), device)
    out.print("\n[bold]loop nests[/bold] (loops of one trip dropped)")
    for notation in dict.fromkeys(plan.notation for plan, _ in pruned.tables or ()):
        _plain(f"  {notation}", out)


def _resolved(
    chain: Chain, ready: Program
) -> Iterator[tuple[Dependence, tuple[Roll | Refusal, ...]]]:
    """Each dependence of a chain, with the rolls or refusals for what hoisting left of it."""
    known = {o.out for o in chain.operators if o.reduce != "none"}
    kept = {o.out for o in ready.chain.operators}

    def sums(name: str) -> set[str]:
        """The reductions that a reduction of the chain was rewritten to."""
        if name not in kept or ready.chain.operator(name).reduce != "none":
            return {name}
        written = through_maps(ready.chain, ready.chain.operator(name).body)
        return {r.tensor for r in reads(written)} - known

    for d in dependences(chain):
        targets, movings = sums(d.target), sums(d.moving)
        left = [r for r in ready.rolls if (r.target in targets and r.moving in movings)]
        yield d, tuple(r for r in left if r.axis == d.axis)


def _roll_text(r: Roll | Refusal) -> str:
    if isinstance(r, Refusal):
        return f"  refused: {r.reason}\n  twice: {r.target} walks axis {r.axis} again"
    return (
        f"  roll: {r.target} is repaired while {r.moving} moves (r -> s)\n"
        f"    g(r, c)   = {r.g}\n"
        f"    inverse:    {r.inverse}\n"
        f"    h(t, r, s): {r.target} <- {text(r.h)}\n"
        f"  split: partial results over parts of axis {r.axis}, combined by h"
    )


def show_model(explanation: ModelExplanation, out: Console) -> None:
    """Prints the regions of a model, with what they save and the predicted times, then every
    operator with its region or the reason why it is in none."""
    regions, operators = explanation.regions, explanation.operators
    alone = sum(o.region is None for o in operators)
    _plain(
        f"{len(operators)} operators, {len(operators) - alone} of them in {len(regions)} regions; "
        f"times are predicted for {explanation.device}",
        out,
    )
    if regions:
        head = ("region", "at", "saves", "fused", "in pieces", "operators")
        _aligned([head, *(_region(number, r) for number, r in enumerate(regions, 1))], out)
    _aligned([("operator", "name", "result", "region"), *map(_operator, operators)], out)


def _operator(o: ExplainedOperator) -> tuple[str, ...]:
    region = f"{o.region + 1}" if o.region is not None else f"none: {o.reason}"
    return o.operator, o.name, o.result, region


def _region(number: int, r: ExplainedRegion) -> tuple[str, ...]:
    pieces = f"{_predicted(r.pieces_seconds)} ({r.pieces})" if r.pieces > 1 else "one piece"
    at = f"{r.places} place{'s' * (r.places > 1)}"
    saves = f"{r.saved_bytes:,} bytes"
    return str(number), at, saves, _predicted(r.fused_seconds), pieces, " ".join(r.operators)


def _predicted(seconds: float | None) -> str:
    return _micro(seconds) if seconds is not None else "no candidate"


def _aligned(rows: Sequence[tuple[str, ...]], out: Console) -> None:
    """Prints rows as columns of plain text, after an empty line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    _plain("", out)
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        _plain("  ".join(cells).rstrip(), out)


def show_devices(devices: Sequence[Device], out: Console) -> None:
    """Prints the devices with their rates."""
    table = _table("device", "arch", "units", "float16", "float32", "bandwidth", "fast memory")
    for d in devices:
        table.row(
            d.name,
            d.arch,
            str(d.units),
            f"{d.throughput('float16') / 1e12:.1f} TFLOP/s",
            f"{d.throughput('float32') / 1e12:.1f} TFLOP/s",
            f"{d.bandwidth / 1e9:.0f} GB/s",
            f"{d.fast // 1024} KiB",
        )
    out.print(table)


def show_readings(device: Device, out: Console) -> None:
    """Prints the readings of a device's last probe, in seconds; some are of one multiprocessor."""
    if not device.readings:
        _plain(f"{device.name} was not probed: its constants are scaled by published rates", out)
        return
    table = _table("reading", "seconds")
    for name, value in device.readings:
        table.row(name, f"{value:.3g}")
    out.print(table)


def _plain(words: str, out: Console) -> None:
    out.print(words, highlight=False, markup=False)


class _Table(Table):
    """A table whose cells are plain text: brackets in them are no markup."""

    def row(self, *cells: str) -> None:
        self.add_row(*(Text(c) for c in cells))


def _table(*columns: str) -> _Table:
    table = _Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _candidate(kernel: Mapping[str, Any]) -> str:
    split = f" {kernel['split']}/{kernel['parts']}" if kernel["split"] else ""
    return f"{kernel['expression']} {_tiles(kernel['tiles'])}{split}"


def _tiles(tiles: Mapping[str, int]) -> str:
    return " ".join(f"{a}={n}" for a, n in tiles.items())


def _micro(seconds: float | None) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds is not None else "-"
