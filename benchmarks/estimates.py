"""How good mcfuser's estimates are, against what is compiled and measured.

    python benchmarks/estimates.py model [--device nvidia/h200] [--measure 360] [--constants]
    python benchmarks/estimates.py shared-memory [--device nvidia/h200] [--limit 2000]

`model` judges models of time by the landscapes under `benchmarks/data/`, and measures those anew
where it is asked to, on the GPU at hand. `shared-memory` needs no GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

import judge as judging
import landscape
import shared_memory as sharing
from mcfuser.chain import Chain
from mcfuser.cli.terminal import ended
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.device import Device
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import DeviceError, InputError
from workloads import GROUPED, LANDSCAPES, PAPER

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Judge mcfuser's estimates by measurements."
)
out = Console(soft_wrap=True)
DATA = Path(__file__).parent / "data"
T = TypeVar("T")

DeviceOption = Annotated[str, typer.Option(help="a GPU of the catalogue")]
SeedOption = Annotated[int, typer.Option(help="of the sample", min=0)]


@app.command("shared-memory")
def shared_memory(
    device: DeviceOption = "nvidia/h200",
    limit: Annotated[int, typer.Option(help="most candidates compiled in all", min=1)] = 2000,
    seed: SeedOption = 0,
    workload: Annotated[
        list[str] | None, typer.Option(help="G1 .. G12, S1 .. S9; repeatable; all of them if none")
    ] = None,
) -> None:
    """Equation (1) against what Triton allocates, for the paper's workloads (Fig. 10)."""
    target = _gpu(device)
    chosen = sharing.draw(_known(workload, PAPER), target, limit, seed)
    with Compilers(os.cpu_count() or 1) as compilers, out.status("compiling") as status:
        sized, failed = sharing.measure(
            chosen, target, compilers, lambda n, m: status.update(f"compiling {n} of {m}")
        )
    if not sized:
        raise InputError(f"none of the {len(chosen)} candidates drawn compiles for {target.name}")
    table = _table("estimate", "candidates", "right side", "kept, too large", "dropped, would fit")
    for side in sharing.sides(sized, target):
        table.add_row(
            side.name, str(side.count), f"{side.right:.1%}", f"{side.kept:.1%}", f"{side.lost:.1%}"
        )
    out.print(table)
    near = sum(abs(s.estimate - s.allocated) <= 0.1 * s.allocated for s in sized)
    out.print(
        f"{target.name}, float16: {near / len(sized):.0%} of the estimates are within 10 % of what "
        f"is allocated; {failed} candidates do not compile",
        highlight=False,
    )


@app.command()
def model(
    device: DeviceOption = "nvidia/h200",
    measure: Annotated[
        int, typer.Option(help="candidates to measure for each landscape; 0 judges those at hand")
    ] = 0,
    data: Annotated[Path, typer.Option(help="folder of landscapes")] = DATA,
    seed: SeedOption = 0,
    workload: Annotated[
        list[str] | None, typer.Option(help="G1, S4, D1, L2, P3, N1, W1 ..; repeatable")
    ] = None,
    constants: Annotated[
        bool, typer.Option("--constants", help="print the constants fitted to all landscapes")
    ] = False,
) -> None:
    """How well models rank measured candidates (Fig. 11); the fitted one on what it did not see."""
    target = _gpu(device)
    folder = data / target.name.rpartition("/")[2]
    if measure:
        _measure(target, _known(workload, LANDSCAPES), folder, measure, seed)
    files = sorted(folder.glob("*.json"))
    if not files:
        raise InputError(f"'{folder}' holds no landscapes; measure some with --measure 360")
    found = [judging.known(landscape.read(path)) for path in files]
    table = _table(
        "landscape",
        "model",
        "candidates",
        "Pearson",
        "Spearman within 3x",
        "best of top 8",
        "first",
    )
    for v in judging.judge(found):
        table.add_row(
            v.landscape, v.model, str(v.count), f"{v.pearson:.3f}", f"{v.spearman:.3f}",
            f"{v.top:.3f}", f"{v.first:.3f}",
        )  # fmt: skip
    out.print(table)
    out.print("best of top 8, first: their time over the best time measured", highlight=False)
    if constants:
        for name, value in judging.fit(found).items():
            out.print(f'("{name}", {value:.3g})', highlight=False, markup=False)


def _measure(
    device: Device, workloads: dict[str, Chain], folder: Path, count: int, seed: int
) -> None:

    from mcfuser.backends import backend_of
    from mcfuser.measure.worker import Worker

    folder.mkdir(parents=True, exist_ok=True)
    with Worker(backend_of(device), device) as worker:
        if (why := worker.refused()) is not None:
            raise DeviceError(f"no landscape can be measured: {why}")
        for name, chain in workloads.items():
            found = landscape.whole(chain, device, groups=name in GROUPED)
            chosen = landscape.drawn(found, device, count, seed)
            made = landscape.measure(name, chain, device, chosen, found, worker, seed)
            landscape.write(folder / f"{name}.json", made)
            right = sum(p.seconds is not None for p in made.points)
            out.print(f"{name}: {right} of {len(made.points)} candidates timed", highlight=False)


def _gpu(name: str) -> Device:
    device = device_named(name)
    if device.kind != "cuda":
        raise InputError(f"device '{name}' is no GPU; this benchmark is about GPUs")
    return device


def _known(names: list[str] | None, known: Mapping[str, T]) -> dict[str, T]:
    for name in names or ():
        if name not in known:
            raise InputError(f"workload '{name}' is not known; use one of {', '.join(known)}")
    return {n: known[n] for n in names or known}


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    return table


if __name__ == "__main__":
    sys.exit(ended(app))
