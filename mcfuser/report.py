"""Prints reports, kernels, spaces and devices as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from mcfuser.algebra.roll import Refusal, Roll
from mcfuser.chain import TF32
from mcfuser.derivation import Derivation
from mcfuser.device import Device
from mcfuser.expr import text
from mcfuser.space.prune import PruneStep
from mcfuser.table import Row, TableColumn, lines
from mcfuser.tune.budget import Budget
from mcfuser.tune.tuned import Tuned

if TYPE_CHECKING:
    from mcfuser.explain import (
        ExplainedAlternative,
        ExplainedOperator,
        ExplainedRegion,
        ModelExplanation,
    )


NUMBERLESS = (
    "'{name}' has no number on these inputs, nor has it in onnxruntime: compare it on inputs of "
    "your own (mcfuser run --model --inputs)"
)
"""What is said of an output of which nothing was compared but that it has no finite number."""


def show(report: Mapping[str, Any], out: Console) -> None:
    """Prints the report of a compilation: its chains, then the products that share no kernel, and
    why."""
    _table(_CHAINS, [_chain(n, c) for n, c in enumerate(report["chains"], 1)], out)
    alone: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for p in report["products"]:
        if p["reason"] is not None:
            alone.setdefault((p["chain"], *p["shape"].values()), []).append(p)
    if alone:
        out.print()
        _table(_PRODUCTS, [_product(group) for group in alone.values()], out)
    out.print()
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
    _show_functions(report.get("functions"), out)
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


_CHAINS = (
    TableColumn("chain"),
    TableColumn("name", "name"),
    TableColumn("operators", "words"),
    TableColumn("kernel", "words"),
    TableColumn("time"),
    TableColumn("unfused"),
    TableColumn("error"),
    TableColumn("result", "words"),
)
_PRODUCTS = (
    TableColumn("product", "name"),
    TableColumn("shape"),
    TableColumn("phi"),
    TableColumn("P/W"),
    TableColumn("why it shares no kernel", "words"),
)

_FUNCTIONS = (
    TableColumn("not tuned", "name"),
    TableColumn("time"),
    TableColumn("share"),
    TableColumn("calls"),
)
SHOWN = 0.03
"""The least share of a run's time for which a function that is not tuned is named."""


def _chain(number: int, chain: Mapping[str, Any]) -> Row:
    return (
        str(number),
        chain["name"] + _times_used(len(chain["places"])),
        " ".join(o.split("[")[0] for o in chain["operators"]),
        "\n".join(map(_candidate, chain["kernels"])) or "TVM's",
        _micro(chain["fused_seconds"]),
        _micro(chain["unfused_seconds"]),
        _error(chain),
        ("fused, " if chain["fused"] else "") + chain["reason"],
    )


def _product(group: Sequence[Mapping[str, Any]]) -> Row:
    """Products that share no kernel, for the same reason and of the same shape."""
    p, s = group[0], group[0]["shape"]
    return (
        p["name"] + _times_used(len(group)),
        f"{s['batch']} x {s['rows']} x {s['depth']} x {s['columns']}",
        f"{p['phi']:.1f}",
        f"{p['bound']:.1f}",
        p["reason"],
    )


def _show_buckets(report: Mapping[str, Any], out: Console) -> None:
    """Prints the shapes that a model with ranges was compiled for."""
    if "buckets" not in report:
        return
    names = [e["name"] for e in report["extents"]]
    columns = [TableColumn(name) for name in ("bucket", *names)]
    rows: list[Row] = []
    for number, b in enumerate(report["buckets"], 1):
        ends = [(b["low"][n], b["high"][n]) for n in names]
        spans = (f"{low}..{high}" if low < high else str(high) for low, high in ends)
        rows.append((str(number), *spans, " ".join(str(c + 1) for c in b["chains"])))
    _table((*columns, TableColumn("chains", "words")), rows, out)
    out.print()
    for e in report["extents"]:
        if e.get("sliced"):
            _plain(f"more than {e['high']} of {e['name']} are computed {e['high']} at a time", out)
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
    words = "products of {dtype} operands: {narrow_products}, left in float32: {float32_products}"
    if precision["dtype"] == TF32:
        words = "products whose operands may be rounded to TF32: {narrow_products}"
    words += "; other operators in float32: {float32_operators}"
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
        for name in check.get("numberless", ()):
            _plain(f"  {NUMBERLESS.format(name=name)}", out)
        for name, error in check["outputs"].items() if narrowed else ():
            _plain(f"  {name}: error {error:.1e} against the float32 model", out)
    elif "skipped" in check:
        _plain(f"not compared with onnxruntime: {check['skipped']}", out)


def _show_functions(functions: Sequence[Mapping[str, Any]] | None, out: Console) -> None:
    """Prints how much of the running module's time is in tuned kernels, and what else takes long;
    nothing where that was not measured."""
    whole = sum(f["seconds"] for f in functions or ())
    if not functions or not whole:
        return
    tuned = sum(f["seconds"] for f in functions if f["tuned"])
    _plain(
        f"{tuned / whole:.0%} of the {whole * 1e3:.3f} ms of a run's functions is in tuned kernels",
        out,
    )
    long = [f for f in functions if not f["tuned"] and f["seconds"] >= SHOWN * whole]
    if long:
        rows = [
            (f["name"], _micro(f["seconds"]), f"{f['seconds'] / whole:.0%}", f"{f['calls']:.0f}")
            for f in long
        ]
        out.print()
        _table(_FUNCTIONS, rows, out)
        out.print()


def _how_it_ended(budget: Budget) -> str:
    return str(budget) if budget.ended == "settled" else f"was {budget}"


def _times_used(count: int) -> str:
    return f" (x{count})" if count > 1 else ""


def _error(chain: Mapping[str, Any]) -> str:
    errors = [k["error"] for k in chain["kernels"] if k["error"] is not None]
    return f"{max(errors):.0e}" if errors else "-"


def show_kernel(tuned: Tuned, out: Console) -> None:
    """Prints a tuned kernel without its source."""
    rows: list[Row] = []
    rows.append(("chain", str(tuned.chain)))
    rows.append(("device", tuned.device))
    rows.append(("expression", tuned.expression))
    rows.append(("tiles", _tiles(tuned.tiles)))
    if tuned.split is not None:
        rows.append(("split", f"{tuned.split} in {tuned.parts} parts"))
    rows.append(("lowering", _tiles(tuned.lowering)))
    rows.append(("predicted", _micro(tuned.predicted)))
    rows.append(("measured", _micro(tuned.measured) if tuned.measured else "not measured"))
    if "next" in tuned.conditions:
        low, high = tuned.conditions["next"]
        words = f"the next one takes {low:.2f} to {high:.2f} times as long"
        rows.append(("sure", f"{tuned.conditions['sure']:.3f}: {words}"))
    if tuned.conditions.get("busy"):
        rows.append(("machine", "busy while the kernel was timed"))
    rows.append(("error", f"{tuned.error:.1e}" if tuned.error is not None else "not measured"))
    rows.append(("candidates", ", ".join(f"{k} {v:,}" for k, v in tuned.stages.items())))
    rows.append(("trials", f"{tuned.trials}, the search {_how_it_ended(tuned.budget)}"))
    if tuned.missed:
        rows.append(("searched, for", tuned.missed))
    if tuned.stale:
        rows.append(("stale", tuned.stale))
    for reason, count in tuned.failed.items():
        rows.append(("failed", f"{count} x {reason}"))
    for name, number in tuned.resources.items():
        rows.append((name, str(number)))
    _table((TableColumn("kernel"), TableColumn("", "words")), rows, out)


def show_space(document: Mapping[str, Any], steps: Sequence[PruneStep], out: Console) -> None:
    """Prints the sizes of a chain's space, before and after each pruning step."""
    rows = [("space", str(document["expressions"]), f"{document['candidates']:,}", "")]
    for step in steps:
        shown = " ".join(step.expressions[:6]) + (" .." if len(step.expressions) > 6 else "")
        rows.append((step.rule, str(len(step.expressions)), f"{step.candidates:,}", shown))
    rows.append(("distinct", "", f"{document['distinct']:,}", "equal statements merged"))
    rows.append(("split", "", f"{document['split']:,}", "where blocks are few, loops in parts"))
    titles = (TableColumn(title) for title in ("step", "expressions", "candidates"))
    _table((*titles, TableColumn("", "words")), rows, out)
    _plain(f"{document['chain']} on {document['device']}", out)


def show_algebra(derivation: Derivation, out: Console) -> None:
    """Prints how each dependence between the reductions of a chain is resolved, and the loop
    nests."""
    out.print("[bold]chain[/bold]")
    _plain(str(derivation.chain), out)
    if derivation.ready != derivation.chain:
        words = "empty rows guarded, exponentials to base two, masks taken once"
        out.print(f"\n[bold]made ready[/bold]: {words}, what does not vary hoisted")
        _plain(str(derivation.ready), out)
    if not derivation.dependences:
        out.print("\nno reduction needs another one over the same axis")
    for resolved in derivation.dependences:
        d = resolved.dependence
        _plain(f"\n{d.target} needs {d.moving} over {d.axis}", out)
        if not resolved.rolls:
            _plain(f"  hoist: what waits for {d.moving} leaves the sum", out)
        for r in resolved.rolls:
            _plain(_roll_text(r), out)
    out.print("\n[bold]loop nests[/bold] (loops of one trip dropped)")
    for notation in derivation.loop_nests:
        _plain(f"  {notation}", out)


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
    """Prints the regions of a model, with what they save and the predicted times, then what was
    considered where regions overlap, then every operator with its region or the reason why it is in
    none."""
    regions, operators = explanation.regions, explanation.operators
    alone = sum(o.region is None for o in operators)
    _plain(
        f"{len(operators)} operators, {len(operators) - alone} of them in {len(regions)} regions; "
        f"times are predicted for {explanation.device}",
        out,
    )
    if regions:
        out.print()
        _table(_REGIONS, [_region(number, r) for number, r in enumerate(regions, 1)], out)
    if explanation.considered:
        out.print()
        _table(_CONSIDERED, [_considered(c) for c in explanation.considered], out)
    out.print()
    _table(_OPERATORS, [_operator(o) for o in operators], out)


_REGIONS = (
    *map(TableColumn, ("region", "at", "saves", "fused", "in pieces")),
    TableColumn("operators", "words"),
)
_CONSIDERED = (
    TableColumn("considered", "name"),
    *map(TableColumn, ("at", "one kernel", "all with it", "at best")),
    TableColumn("result", "words"),
    TableColumn("operators", "words"),
)
_VERDICTS = {
    "chosen": "chosen",
    "measured": "chosen, and measured beside its pieces",
    "inside": "inside another, measured beside it",
    "close": "not chosen, but measured as well",
    "dearer": "not chosen",
    "cannot win": "not chosen",
    "cannot be written": "no chain",
}
_OPERATORS = (
    TableColumn("operator"),
    TableColumn("name", "name"),
    TableColumn("result"),
    TableColumn("region", "words"),
)


def _considered(c: ExplainedAlternative) -> tuple[str, ...]:
    at = f"{c.places} place{'s' * (c.places > 1)}"
    bound = "at least " if c.verdict == "cannot win" else ""
    verdict = _VERDICTS[c.verdict] + (f": {c.reason}" if c.reason is not None else "")
    times = (bound + _predicted(c.seconds), bound + _predicted(c.cover_seconds))
    return c.name, at, *times, _predicted(c.least_seconds), verdict, " ".join(c.operators)


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


def show_devices(devices: Sequence[Device], out: Console) -> None:
    """Prints the devices with their rates: teraflops and gigabytes per second."""
    titles = ("device", "arch", "units", "fp16 TF/s", "fp32 TF/s", "GB/s", "fast KiB")
    rows = [
        (
            d.name,
            d.arch,
            str(d.units),
            f"{d.throughput('float16') / 1e12:.3g}",
            f"{d.throughput('float32') / 1e12:.3g}",
            f"{d.bandwidth / 1e9:.0f}",
            str(d.fast // 1024),
        )
        for d in devices
    ]
    _table([TableColumn(title) for title in titles], rows, out)


def show_readings(device: Device, out: Console) -> None:
    """Prints the readings of a device's last probe, in seconds; some are of one multiprocessor."""
    if not device.readings:
        _plain(f"{device.name} was not probed: its constants are scaled by published rates", out)
        return
    rows = [(name, f"{value:.3g}") for name, value in device.readings]
    _table((TableColumn("reading"), TableColumn("seconds")), rows, out)


def _plain(words: str, out: Console) -> None:
    out.print(words, highlight=False, markup=False, soft_wrap=True)


def _table(columns: Sequence[TableColumn], rows: Sequence[Row], out: Console) -> None:
    """Prints a table as wide as the terminal; where there is none, as wide as its rows are."""
    first, *rest = lines(columns, rows, out.width if out.is_terminal else None)
    out.print(Text(first, style="bold"), soft_wrap=True)
    for line in rest:
        out.print(Text(line), soft_wrap=True)


def _candidate(kernel: Mapping[str, Any]) -> str:
    split = f" {kernel['split']}/{kernel['parts']}" if kernel["split"] else ""
    return f"{kernel['expression']} {_tiles(kernel['tiles'])}{split}"


def _tiles(tiles: Mapping[str, int]) -> str:
    return " ".join(f"{a}={n}" for a, n in tiles.items())


def _micro(seconds: float | None) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds is not None else "-"
