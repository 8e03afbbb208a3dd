"""Reports as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcfuser.algebra.hoist import hoist
from mcfuser.algebra.roll import Roll, rolls
from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.expr import text
from mcfuser.space.prune import Step, prune, space
from mcfuser.tuned import Tuned


def show(report: Mapping[str, Any], out: Console) -> None:
    """A compilation's report: its chains, then the products that stand alone and why."""
    table = _table("chain", "operators", "kernel", "time", "unfused", "error", "result")
    for number, chain in enumerate(report["chains"], 1):
        kernels = chain["kernels"]
        table.row(
            f"{number}. {chain['name']}" + _times_used(len(chain["places"])),
            " ".join(o.split("[")[0] for o in chain["operators"]),
            "\n".join(f"{k['expression']} {_tiles(k['tiles'])}" for k in kernels) or "TVM's",
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
                f"{p['phi']:.1f}", f"{p['bound']:.1f}", p["reason"],
            )  # fmt: skip
        out.print(table)
    seconds = report["seconds"]
    out.print(
        f"{report['device']} ({report['arch']}): times {report['times']}; tuned in "
        f"{seconds['tuning']:.1f} s, built in {seconds['building']:.1f} s",
        highlight=False,
    )


def _times_used(count: int) -> str:
    return f" (x{count})" if count > 1 else ""


def _error(chain: Mapping[str, Any]) -> str:
    errors = [k["error"] for k in chain["kernels"] if k["error"] is not None]
    return f"{max(errors):.0e}" if errors else "-"


def show_kernel(tuned: Tuned, out: Console) -> None:
    table = _table("kernel", "")
    table.row("chain", str(tuned.chain))
    table.row("device", tuned.device)
    table.row("expression", tuned.expression)
    table.row("tiles", _tiles(tuned.tiles))
    table.row("lowering", _tiles(tuned.lowering))
    table.row("predicted", _micro(tuned.predicted))
    table.row("measured", _micro(tuned.measured) if tuned.measured else "not measured")
    table.row("error", f"{tuned.error:.1e}" if tuned.error is not None else "not measured")
    table.row("candidates", ", ".join(f"{k} {v:,}" for k, v in tuned.stages.items()))
    table.row("trials", str(tuned.trials))
    for reason, count in tuned.failed.items():
        table.row("failed", f"{count} x {reason}")
    for name, number in tuned.resources.items():
        table.row(name, str(number))
    out.print(table)


def show_space(document: Mapping[str, Any], steps: Sequence[Step], out: Console) -> None:
    table = _table("step", "expressions", "candidates", "")
    table.row("space", str(document["expressions"]), f"{document['candidates']:,}", "")
    for step in steps:
        shown = " ".join(step.expressions[:6]) + (" .." if len(step.expressions) > 6 else "")
        table.row(step.rule, str(len(step.expressions)), f"{step.candidates:,}", shown)
    table.row("distinct", "", f"{document['distinct']:,}", "equal statements merged")
    out.print(table)
    out.print(f"{document['chain']} on {document['device']}", highlight=False)


def show_algebra(chain: Chain, device: Device, out: Console) -> None:
    """What happens to every dependence between reductions, and the fused loop nest."""
    out.print("[bold]chain[/bold]")
    _plain(str(chain), out)
    moved = hoist(chain)
    if moved != chain:
        out.print("\n[bold]hoisted[/bold]: what does not vary along the axis leaves the sum")
        _plain(str(moved), out)
    found = rolls(moved)
    if not found:
        out.print("\nno reduction needs another one over the same axis")
    for r in found:
        if isinstance(r, Roll):
            out.print(
                f"\n[bold]roll[/bold] {r.target} over {r.axis}, while {r.moving} moves (r -> s)"
            )
            _plain(
                f"  g(r, c)   = {r.g}\n  inverse:    {r.inverse}\n  {r.target} <- {text(r.h)}", out
            )
        else:
            out.print(f"\n[bold]refused[/bold]: {r.reason}", highlight=False)
    pruned, _ = prune(space(chain), device)
    out.print("\n[bold]loop nests[/bold] (loops of one trip dropped)")
    for notation in dict.fromkeys(plan.notation for plan, _ in pruned.tables or ()):
        _plain(f"  {notation}", out)


def show_devices(devices: Sequence[Device], out: Console) -> None:
    table = _table("device", "arch", "units", "float16", "float32", "bandwidth", "fast memory")
    for d in devices:
        table.row(
            d.name, d.arch, str(d.units), f"{d.throughput('float16') / 1e12:.1f} TFLOP/s",
            f"{d.throughput('float32') / 1e12:.1f} TFLOP/s", f"{d.bandwidth / 1e9:.0f} GB/s",
            f"{d.fast // 1024} KiB",
        )  # fmt: skip
    out.print(table)


def _plain(words: str, out: Console) -> None:
    out.print(words, highlight=False, markup=False)


class _Table(Table):
    """A table of plain words: what a chain writes in brackets is no markup."""

    def row(self, *cells: str) -> None:
        self.add_row(*(Text(c) for c in cells))


def _table(*columns: str) -> _Table:
    table = _Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _tiles(tiles: Mapping[str, int]) -> str:
    return " ".join(f"{a}={n}" for a, n in tiles.items())


def _micro(seconds: float | None) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds is not None else "-"
