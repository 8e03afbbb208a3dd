"""Writes the printed text in docs/architecture.md: python docs/architecture.py

The page follows one chain through every room. What stands there between `<!-- begin NAME -->` and
`<!-- end -->` is printed by the rooms themselves, by the functions of `BLOCKS`; the prose between
the blocks is written by hand. The script lies beside the page that it writes, outside the package,
because nothing that is installed needs it; `make docs` runs it, and a test compares its text with
the file byte for byte. It takes a few seconds, measures nothing and needs no GPU: for the station
where a kernel is timed it holds the answer of one run (`ANSWER`).
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
from rich.console import Console

from mcfuser.backend import Backend, Kernel
from mcfuser.backends import backend_of
from mcfuser.chain import Chain, from_json
from mcfuser.codegen import tensorir, triton
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.lowering.loops import pipelined
from mcfuser.lowering.triton.hopper.groups import REGISTERS, Groups
from mcfuser.lowering.triton.planned import planned
from mcfuser.lowering.triton.resources import Lowered
from mcfuser.lowering.triton.width import power
from mcfuser.measure.request import Inputs, Measured, Request
from mcfuser.measure.worker import SAMPLED, TOLERANCE
from mcfuser.model import analytical, fitted, roofline
from mcfuser.report import show_algebra, show_kernel, show_space
from mcfuser.space.candidates import Candidates, candidates
from mcfuser.space.count import count
from mcfuser.space.expression import parse, tilings
from mcfuser.space.knobs import KnobTable, declared
from mcfuser.space.plan import Floats, Ints, Plan, footprint
from mcfuser.space.prune import Space, Step, distinct, parted, prune, space
from mcfuser.space.schedule import Schedule
from mcfuser.tune.budget import Budget
from mcfuser.tune.expected import pruned
from mcfuser.tune.key import CacheKey
from mcfuser.tune.tuned import Options, Tuned

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
CHAIN = ROOT / "examples" / "chains" / "attention.json"
EXTENTS = {"b": 4, "m": 256, "n": 256, "k": 64, "h": 64}
"""Those of the page's chain: small, so that texts are short."""
EXPRESSION, TILES = "mh.nk", {"m": 64, "n": 64, "k": 64, "h": 64}
NAME = "kernel_attention"
GPU = CATALOGUE["nvidia/h200"]
CPU = Device("cpu", "cpu", "znver3", 2, (("float32", 1.1e11),), 1.4e10, 512 << 10, 256)
"""A CPU whose figures do not change from run to run, as those of the CPU at hand do."""
ANSWER = Measured(
    seconds=2.19e-3, error=2.08e-4,
    times=(2.19e-3, 7.78e-4, 8.84e-3, 7.41e-4, 7.12e-4, 3.58e-3, 2.25e-3),
    conditions={"share": 0.343, "busy": True, "cores": 2, "load": 9.36, "pressure": 99.07,
                "in_turns": 1},
)  # fmt: skip
"""What the measuring process answered on 2026-11-22 on two cores that much else kept busy, seconds
to three digits. An example: times and conditions differ from run to run."""
MICRO = tensorir.Lowering(rows=6, vectors=2, lanes=8)
"""The register micro-tile of the CPU's kernel."""
SHORTENED = 52
"""Lines of the CPU's kernel that the page shows."""
WIDE, CELL = 100, 28
"""Columns of what is printed, and of a cell."""


@dataclass(frozen=True)
class Shown:
    """The text of a block, and the language in which it is to be coloured."""

    text: str
    language: str = "text"

    def __str__(self) -> str:
        return f"```{self.language}\n{self.text.rstrip()}\n```"


class Walk:
    """One chain on its way through the rooms; every station is computed once."""

    @cached_property
    def chain(self) -> Chain:
        return from_json(json.loads(CHAIN.read_text()) | {"axes": EXTENTS})

    @cached_property
    def gpu(self) -> Backend:
        return backend_of(GPU)

    @cached_property
    def whole(self) -> Space:
        return space(self.chain)

    @cached_property
    def pruned(self) -> tuple[Space, tuple[Step, ...]]:
        return prune(self.whole, GPU)

    @cached_property
    def distinct(self) -> Space:
        return distinct(self.pruned[0])

    @cached_property
    def parted(self) -> Space:
        return parted(self.distinct, GPU)

    @cached_property
    def candidates(self) -> Candidates:
        return candidates(self.parted, KnobTable(self.gpu.knobs, GPU), self.gpu.feasible)

    def plan(self, tiles: Mapping[str, int]) -> Plan:
        return Plan(self.whole.program, parse(EXPRESSION), self.whole.dead(tiles))

    @cached_property
    def schedule(self) -> Schedule:
        return self.plan(TILES).schedule(TILES)

    @cached_property
    def cpu_source(self) -> tensorir.Source:
        return tensorir.generate(self.schedule, NAME, MICRO)

    @cached_property
    def kernel(self) -> Kernel:
        source = self.cpu_source
        return Kernel(self.chain, source.text, tensorir.to_record(source))


# --- stations -------------------------------------------------------------------------------


def chain(walk: Walk) -> Shown:
    """The chain, one operator a line."""
    return Shown(str(walk.chain))


def verdicts(walk: Walk) -> Shown:
    """What `mcfuser explain` prints between the chain and its loop nests."""
    text = _printed(lambda out: show_algebra(walk.chain, GPU, out))
    return Shown(text[text.index("made ready") : text.index("loop nests")])


def expressions(walk: Walk) -> Shown:
    """Expressions before and after binding, and the candidate's plan."""
    every = [str(e) for e in tilings(walk.whole.program.chain)]
    deep = [e for e in every if "(" not in e]
    flat = [e for e in every if "(" in e]
    plan = walk.plan(TILES)
    whole = Plan(plan.program, plan.expression, frozenset())
    lines = [
        f"deep        {' '.join(deep[:8])} .. ({len(deep)} of them)",
        f"flat        {' '.join(flat)}",
        f"expression  {plan.expression}",
        f"as placed   {whole.notation}",
        f"tiles       {_words(TILES)}",
        f"dead loops  {' '.join(sorted(plan.dead))}",
        f"plan        {plan.notation}",
    ]
    return Shown("\n".join(lines))


def pruning(walk: Walk) -> Shown:
    """What `mcfuser space` prints."""
    document = {
        "chain": walk.chain.name, "device": GPU.name, "expressions": len(walk.whole.expressions),
        "candidates": walk.whole.candidates, "distinct": walk.distinct.candidates,
        "split": walk.parted.candidates,
    }  # fmt: skip
    text = _printed(lambda out: show_space(document, walk.pruned[1], out))
    knobs = [f"{k.name} {', '.join(map(str, k.values))}" for k in declared(walk.gpu.knobs)]
    return Shown(
        f"{text.rstrip()}\n\nunder every feasible setting of the knobs: {len(walk.candidates):,}\n"
        + "\n".join(f"  {k}" for k in knobs)
    )


def schedule(walk: Walk) -> Shown:
    """The placed program."""
    return Shown(str(walk.schedule))


def counts(walk: Walk) -> Shown:
    """What the schedule moves and computes, exactly."""
    found = count(walk.schedule)
    need = footprint(walk.plan(TILES), _rows(TILES))[0]
    lines = [
        f"loaded      {_words(found.loaded)} (elements)",
        f"stored      {_words(found.stored)}",
        f"padded      {found.padded}",
        f"bytes       {found.nbytes(walk.schedule):,}",
        f"flops       {found.flops:,}",
        f"footprint   {need:,} bytes (equation 1)",
    ]
    return Shown("\n".join(lines))


TRIED: tuple[tuple[dict[str, int], dict[str, int | bool]], ...] = (
    (TILES, {"warps": 4, "stages": 2, "tma": False, "groups": False}),
    (TILES | {"m": 16}, {"warps": 4, "stages": 3, "tma": False, "groups": False}),
    (TILES | {"m": 128}, {"warps": 4, "stages": 2, "tma": True, "groups": True}),
)
"""Candidates of the same plan whose facts are shown side by side: tiles, and settings of knobs."""


def facts(walk: Walk) -> Shown:
    """What Triton makes of three candidates of the plan."""
    plan, found = walk.plan(TILES), planned(walk.plan(TILES))
    tiles = np.asarray([[t[a] for a in plan.axes] for t, _ in TRIED], np.int64)
    columns = {n: np.asarray([s[n] for _, s in TRIED]) for n in TRIED[0][1]}
    warps = columns["warps"] * (1 + columns["groups"])
    last = np.zeros(len(TRIED), bool)
    made = Lowered(plan, tiles, warps, columns["stages"], last, True, columns["tma"])
    lines = [
        _row("candidate", [_short(t, s) for t, s in TRIED]),
        *(_row(f"lanes of {a}", [f"{n:.0f}" for n in made.width(a)]) for a in plan.axes),
    ]
    for out, dot in made.dots.items():
        shapes = zip(dot.rows, dot.columns, dot.depth, dot.grouped, strict=True)
        words = [f"{r:.0f} x {c:.0f} x {d:.0f}, by {_issuer(g)}" for r, c, d, g in shapes]
        lines.append(_row(f"product {out}", words))
    for s in found.loads:
        outer = next(o for x, o in found.points if x is s)
        words = [_moves(a, m) for a, m in zip(made.ahead(s, outer), made.mapped(s), strict=True)]
        lines.append(_row(f"load {s.buffer}", words))
    lines += [
        _row("shared memory", [f"{int(x):,} bytes" for x in made.shared]),
        _row("registers", [f"about {x:.0f} a thread" for x in made.registers]),
        "",
        f"loops            {_loops(walk)}",
        f"deferred         {_deferred(walk)}",
        f"padding          tiles of 16, 48, 80 positions have "
        f"{', '.join(map(str, power(np.asarray([16, 48, 80]))))} lanes",
    ]
    return Shown("\n".join(line.rstrip() for line in lines))


def _issuer(grouped: np.bool_) -> str:
    return "warp group" if grouped else "warp"


def _moves(ahead: np.bool_, mapped: np.bool_) -> str:
    how = "tensor map" if mapped else "pointers"
    return f"{how}, {'prefetched' if ahead else 'waited for'}"


def _loops(walk: Walk) -> str:
    found = planned(walk.plan(TILES))
    loops = dict.fromkeys(x for _, outer in found.points for x in outer)
    words = [f"{x.axis} {x.kind}{' and pipelined' if pipelined(x) else ''}" for x in loops]
    return ", ".join(words)


def _deferred(walk: Walk) -> str:
    """Of the candidate with warp groups."""
    tiles, settings = TRIED[2]
    groups = Groups(walk.plan(TILES).schedule(tiles), int(settings["stages"]))
    late = ", ".join(sorted(groups.late))
    held = groups.registers([s for s in groups.dots if s.buffer in groups.late])
    return (
        f"product {late} in {groups.count} warp groups of {groups.threads} threads with the loader;"
        f"\n                 its products hold {held} of {REGISTERS[groups.count]} registers"
    )


def seconds(walk: Walk) -> Shown:
    """What the models expect of the same candidates, and of the best ones of the space."""
    plan = walk.plan(TILES)
    tiles = np.asarray([[t[a] for a in plan.axes] for t, _ in TRIED], np.int64)
    table = KnobTable(walk.gpu.knobs, GPU)
    numbers = [table.number(walk.gpu.knobs(**s)) for _, s in TRIED]
    columns = table.columns(np.asarray(numbers, np.int64))
    every = walk.candidates
    best = every.estimates(every.rows, walk.gpu.estimate).min()
    lines = [
        _row("candidate", [_short(t, s) for t, s in TRIED]),
        _row("equation (2)", _micro(analytical.estimate(plan, tiles, GPU))),
        _row("fitted (GPU)", _micro(walk.gpu.estimate(plan, tiles, columns, GPU))),
        _row("roofline (CPU)", _micro(roofline.sequential(plan, tiles, CPU))),
        "",
        f"best predicted of all {len(every):,} candidates for {GPU.name}: {best * 1e6:.1f} us",
        f"events that the fitted model counts: {', '.join(fitted.NAMES[:6])} .. "
        f"({len(fitted.NAMES)} of them)",
    ]
    return Shown("\n".join(line.rstrip() for line in lines))


def gpu_source(walk: Walk) -> Shown:
    """The Triton kernel of the schedule."""
    source = triton.generate(walk.schedule, NAME, triton.Lowering(warps=4, stages=2))
    return Shown(source.text, "python")


def cpu_source(walk: Walk) -> Shown:
    """The head of the TensorIR function of the same schedule."""
    lines = walk.cpu_source.text.rstrip().split("\n")
    rest = f"... ({len(lines) - SHORTENED} more lines)"
    return Shown("\n".join([*lines[:SHORTENED], rest]), "python")


def request(walk: Walk) -> Shown:
    """The line that the measuring process is sent, long texts left out."""
    inputs = Inputs(seed=1, tolerance=TOLERANCE["float16"], flops=SAMPLED)
    document = Request(walk.chain, inputs, ((walk.kernel,),)).to_json()
    kernel = document["programs"][0][0]
    kernel["source"] = f"({len(kernel['source'].splitlines())} lines)"
    document["chain"] = kernel["chain"] = f"({walk.chain.name})"
    return Shown(json.dumps(document, indent=2), "json")


def answer(walk: Walk) -> Shown:
    """The line that it answers."""
    return Shown(json.dumps(ANSWER.to_json()), "json")


def record(walk: Walk) -> Shown:
    """The fields of the document that is kept, and of its key."""
    document = _tuned(walk).to_json()
    names = [f.name for f in fields(CacheKey)]
    rows = [
        f"the document   {_wrapped([*document])}",
        f"made (the key) {_wrapped(names)}",
        f"launch (CPU)   {json.dumps(document['launch'])}",
        f"launch (GPU)   {_wrapped([*_gpu_launch(walk)])}",
    ]
    return Shown("\n".join(rows))


def report(walk: Walk) -> Shown:
    """What `mcfuser tune` prints of the record."""
    return Shown(_printed(lambda out: show_kernel(_tuned(walk), out)))


BLOCKS: Mapping[str, Callable[[Walk], Shown]] = {
    "chain": chain, "verdicts": verdicts, "expressions": expressions, "pruning": pruning,
    "schedule": schedule, "counts": counts, "facts": facts, "seconds": seconds,
    "gpu_source": gpu_source, "cpu_source": cpu_source, "request": request, "answer": answer,
    "record": record, "report": report,
}  # fmt: skip


# --- texts ----------------------------------------------------------------------------------


def _tuned(walk: Walk) -> Tuned:
    """A record as tuning for the CPU keeps one after one trial, of the answer that this script
    holds. Its digests and versions depend on the sources, and are left out."""
    plan, kernel = walk.plan(TILES), walk.kernel
    left, stages = pruned(walk.chain, CPU, Options())
    table = KnobTable(backend_of(CPU).knobs, CPU)
    every = len(candidates(left, table, backend_of(CPU).feasible))
    predicted = roofline.sequential(plan, _rows(TILES), CPU)[0]
    return Tuned(
        key="", chain=walk.chain, device=CPU.name, expression=str(plan.expression), tiles=TILES,
        lowering=asdict(MICRO), source=kernel.source, binary=b"",
        predicted=float(predicted), measured=ANSWER.seconds, error=ANSWER.error,
        stages=stages | {"distinct": left.candidates, "lowered": every}, trials=1,
        conditions=ANSWER.conditions, launch=kernel.launch, budget=Budget(1, 60.0, "trials"),
    )  # fmt: skip


def _gpu_launch(walk: Walk) -> dict[str, object]:
    return triton.to_record(triton.generate(walk.schedule, NAME, triton.Lowering()))


def _printed(show: Callable[[Console], None]) -> str:
    """What is printed on a console of fixed width, without colours."""
    out = io.StringIO()
    show(Console(file=out, width=WIDE, color_system=None, force_terminal=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _rows(tiles: Mapping[str, int]) -> Ints:
    return np.asarray([[*tiles.values()]], np.int64)


def _row(name: str, cells: Iterable[str]) -> str:
    return f"{name:<17}" + "".join(f"{cell:<{CELL}}" for cell in cells)


def _micro(found: Floats) -> list[str]:
    return [f"{x * 1e6:.2f} us" for x in found]


def _words(found: Mapping[str, object]) -> str:
    return " ".join(f"{n}={x:,}" if isinstance(x, int) else f"{n}={x}" for n, x in found.items())


def _short(tiles: Mapping[str, int], settings: Mapping[str, int | bool]) -> str:
    how = "groups" if settings["groups"] else f"{settings['warps']} warps"
    return f"m={tiles['m']}, {how}, {settings['stages']} stages"


def _wrapped(names: Sequence[str]) -> str:
    rows, row = list[str](), ""
    for name in names:
        if len(row) + len(name) > WIDE - 20:
            rows, row = [*rows, row.rstrip()], ""
        row += f"{name}, "
    return f"\n{' ' * 15}".join([*rows, row.rstrip(", ")])


BLOCK = re.compile(r"<!-- begin (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def page(text: str) -> str:
    """The page with every block printed anew. Raises ValueError where the page's blocks are not
    those of `BLOCKS`."""
    walk, named = Walk(), BLOCK.findall(text)
    if sorted(named) != sorted(BLOCKS):
        wrong = {*named} ^ {*BLOCKS} or {n for n in named if named.count(n) > 1}
        raise ValueError(f"blocks of {PAGE.name} that are not there once: {', '.join(wrong)}")

    def anew(found: re.Match[str]) -> str:
        return f"<!-- begin {found[1]} -->\n{BLOCKS[found[1]](walk)}\n<!-- end -->"

    return BLOCK.sub(anew, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
