"""What every room prints of the chain of docs/architecture.md: a function for each block."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields

import numpy as np

from mcfuser.backends import backend_of
from mcfuser.codegen import triton
from mcfuser.derivation import derive
from mcfuser.lowering.loops import pipelined
from mcfuser.lowering.triton.hopper.groups import REGISTERS, WarpGroups
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.lowering.triton.planned import planned
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.lowering.triton.width import power
from mcfuser.measure.request import Inputs, MeasureRequest
from mcfuser.measure.worker import SAMPLED, TOLERANCE
from mcfuser.model import analytical, fitted
from mcfuser.report import show_algebra, show_kernel, show_space
from mcfuser.space.count import count
from mcfuser.space.expression import tilings
from mcfuser.space.knobs import KnobTable, declared
from mcfuser.space.plan import Ints, Plan, footprint
from mcfuser.tune.key import CacheKey
from texts import Shown, micro, pairs, printed, row, wrapped
from walk import ANSWER, CPU, GPU, MICRO, NAME, TILES, Walk

SHORTENED = 52
"""Lines of the CPU's kernel that the page shows."""


def chain(walk: Walk) -> Shown:
    """The chain, one operator a line."""
    return Shown(str(walk.chain))


def verdicts(walk: Walk) -> Shown:
    """What `mcfuser explain` prints between the chain and its loop nests."""
    text = printed(lambda out: show_algebra(derive(walk.chain, walk.chain, GPU), out))
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
        f"tiles       {pairs(TILES)}",
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
    text = printed(lambda out: show_space(document, walk.pruned[1], out))
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
        f"loaded      {pairs(found.loaded)} (elements)",
        f"stored      {pairs(found.stored)}",
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
    made = TritonCandidates(plan, tiles, warps, columns["stages"], last, True, columns["tma"])
    lines = [
        row("candidate", [_short(t, s) for t, s in TRIED]),
        *(row(f"lanes of {a}", [f"{n:.0f}" for n in made.width(a)]) for a in plan.axes),
    ]
    for out, dot in made.dots.items():
        shapes = zip(dot.rows, dot.columns, dot.depth, dot.grouped.tolist(), strict=True)
        words = [
            f"{r:.0f} x {c:.0f} x {d:.0f}, by warp{' group' * bool(g)}" for r, c, d, g in shapes
        ]
        lines.append(row(f"product {out}", words))
    for s in found.loads:
        outer = next(o for x, o in found.points if x is s)
        words = [
            _moves(a, m) for a, m in zip(made.asynchronous(s, outer), made.mapped(s), strict=True)
        ]
        lines.append(row(f"load {s.buffer}", words))
    lines += [
        row("shared memory", [f"{int(x):,} bytes" for x in made.shared]),
        row("registers", [f"about {x:.0f} a thread" for x in made.registers]),
        "",
        f"loops            {_loops(walk)}",
        f"deferred         {_deferred(walk)}",
        f"padding          tiles of 16, 48, 80 positions have "
        f"{', '.join(map(str, power(np.asarray([16, 48, 80]))))} lanes",
    ]
    return Shown("\n".join(line.rstrip() for line in lines))


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
    groups = WarpGroups(walk.plan(TILES).schedule(tiles), int(settings["stages"]))
    late = ", ".join(sorted(groups.deferred))
    held = groups.registers([s for s in groups.dots if s.buffer in groups.deferred])
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
    vectors = KnobTable(backend_of(CPU).knobs, CPU)
    alike = vectors.columns(np.full(len(TRIED), vectors.number(MICRO)))
    every = walk.candidates
    best = every.estimates(every.rows, walk.gpu.estimate).min()
    lines = [
        row("candidate", [_short(t, s) for t, s in TRIED]),
        row("equation (2)", micro(analytical.estimate(plan, tiles, GPU))),
        row("fitted (GPU)", micro(walk.gpu.estimate(plan, tiles, columns, GPU))),
        row("sequential (CPU)", micro(backend_of(CPU).estimate(plan, tiles, alike, CPU))),
        "",
        f"best predicted of all {len(every):,} candidates for {GPU.name}: {best * 1e6:.1f} us",
        f"events that the fitted model counts: {', '.join(fitted.NAMES[:6])} .. "
        f"({len(fitted.NAMES)} of them)",
    ]
    return Shown("\n".join(line.rstrip() for line in lines))


def gpu_source(walk: Walk) -> Shown:
    """The Triton kernel of the schedule."""
    source = triton.generate(walk.schedule, NAME, TritonKnobs(warps=4, stages=2))
    return Shown(source.text, "python")


def cpu_source(walk: Walk) -> Shown:
    """The head of the TensorIR function of the same schedule."""
    lines = walk.cpu_source.text.rstrip().split("\n")
    rest = f"... ({len(lines) - SHORTENED} more lines)"
    return Shown("\n".join([*lines[:SHORTENED], rest]), "python")


def request(walk: Walk) -> Shown:
    """The line that the measuring process is sent, long texts left out."""
    inputs = Inputs(seed=1, tolerance=TOLERANCE["float16"], flops=SAMPLED)
    document = MeasureRequest(walk.chain, inputs, ((walk.kernel,),)).to_json()
    kernel = document["programs"][0][0]
    kernel["source"] = f"({len(kernel['source'].splitlines())} lines)"
    document["chain"] = kernel["chain"] = f"({walk.chain.name})"
    return Shown(json.dumps(document, indent=2), "json")


def answer(walk: Walk) -> Shown:
    """The line that it answers."""
    return Shown(json.dumps(ANSWER.to_json()), "json")


def record(walk: Walk) -> Shown:
    """The fields of the document that is kept, and of its key."""
    document = walk.tuned.to_json()
    names = [f.name for f in fields(CacheKey)]
    rows = [
        f"the document   {wrapped([*document])}",
        f"made (the key) {wrapped(names)}",
        f"launch (CPU)   {json.dumps(document['launch'])}",
        f"launch (GPU)   {wrapped([*_gpu_launch(walk)])}",
    ]
    return Shown("\n".join(rows))


def report(walk: Walk) -> Shown:
    """What `mcfuser tune` prints of the record."""
    return Shown(printed(lambda out: show_kernel(walk.tuned, out)))


def _gpu_launch(walk: Walk) -> dict[str, object]:
    return triton.to_record(triton.generate(walk.schedule, NAME, TritonKnobs()))


def _short(tiles: Mapping[str, int], settings: Mapping[str, int | bool]) -> str:
    how = "groups" if settings["groups"] else f"{settings['warps']} warps"
    return f"m={tiles['m']}, {how}, {settings['stages']} stages"


def _rows(tiles: Mapping[str, int]) -> Ints:
    return np.asarray([[*tiles.values()]], np.int64)


BLOCKS: Mapping[str, Callable[[Walk], Shown]] = {
    "chain": chain, "verdicts": verdicts, "expressions": expressions, "pruning": pruning,
    "schedule": schedule, "counts": counts, "facts": facts, "seconds": seconds,
    "gpu_source": gpu_source, "cpu_source": cpu_source, "request": request, "answer": answer,
    "record": record, "report": report,
}  # fmt: skip
