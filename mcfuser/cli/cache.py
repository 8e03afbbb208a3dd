"""`mcfuser cache`: shows what is kept of tuned kernels, says why a chain misses, and removes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcfuser.cli.cache_exchange import export, import_, refresh, verify
from mcfuser.cli.cache_registry import pull, push
from mcfuser.cli.console import out, say
from mcfuser.cli.documents import print_document
from mcfuser.cli.kept import opened_store
from mcfuser.cli.kernels import KernelChainOption, KernelDeviceOption, device_name, full_key
from mcfuser.cli.options import DtypeOption, JsonOption, devices_begun, read_chain
from mcfuser.devices.catalogue import HOST, device_named, names
from mcfuser.errors import InputError

if TYPE_CHECKING:
    from mcfuser.tune.lookup import AgeHere
    from mcfuser_db.models import KernelRow

DAYS = 36_500.0
"""The most that `prune --days` takes."""
_SHOWN = 16  # digits of a key in a list

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="a kernel's key, or the first digits of it")
]

app = typer.Typer(no_args_is_help=True, help="What is kept of tuned kernels.")
app.command("export")(export)
app.command("import")(import_)
app.command("verify")(verify)
app.command("refresh")(refresh)
app.command("push")(push)
app.command("pull")(pull)


@app.command("list")
def list_(
    device: KernelDeviceOption = None,
    chain: KernelChainOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="at most so many")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List tuned kernels, the newest first, with their ages."""
    from mcfuser.tune.lookup import Ages
    from mcfuser_service.kept import age_of

    with opened_store() as store:
        ages = Ages()
        rows = store.kernels(device_name(device), chain, limit)
        documents = [_listed(row, age_of(store, row, ages)) for row in rows]
        unfinished = store.unfinished(device_name(device)) if chain is None else ()
    waiting = [
        {"key": u.key, "device": u.device, "results": u.results, "last": u.last.isoformat()}
        for u in unfinished
    ]
    if as_json:
        print_document({"kernels": documents, "unfinished": waiting})
        return
    for d in documents:
        say(_line(d))
        for why in d["reasons"]:
            say(f"    {why}")
    shown = f"{len(documents)} kernels"
    if waiting:
        shown += f"; {len(waiting)} searches were interrupted and are gone on with when asked for"
    out.print(shown, highlight=False)


@app.command()
def show(
    key: KeyArgument,
    source: Annotated[bool, typer.Option("--source", help="print the kernel's source")] = False,
    candidates: Annotated[
        int, typer.Option(min=0, max=100_000, help="print so many candidates, the fastest first")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show a tuned kernel, and the candidates that its search measured."""
    from mcfuser.report import show_kernel
    from mcfuser.tune.lookup import Ages
    from mcfuser_service.kept import age_of

    with opened_store() as store:
        whole = full_key(store, key)
        tuned = store.get(whole)
        if tuned is None:
            raise InputError(
                f"kernel {whole} is damaged, or of another version; remove it with mcfuser cache "
                f"prune --damaged"
            )
        (row,) = (r for r in store.kernels(key=whole))
        age, reasons = age_of(store, row, Ages())
        axes = [a.name for a in tuned.chain.axes]
        tried = [t.named(axes) for t in store.tried(whole)]
    if as_json:
        document = {**tuned.to_json(), "age": age, "reasons": list(reasons), "tried": tried}
        print_document(document)
        return
    say(f"kernel {whole} is {'; '.join((age, *reasons))}")
    show_kernel(tuned, out)
    right = sorted((t for t in tried if t["measured"]), key=lambda t: float(t["measured"]))
    failed = len(tried) - len(right)
    out.print(f"{len(tried)} candidates are kept, {failed} of them failed", highlight=False)
    for t in right[:candidates]:
        say(_candidate(t))
    if source:
        print(tuned.source)


@app.command()
def explain(
    chain: Annotated[
        str,
        typer.Argument(
            metavar="CHAIN|KEY",
            help="gemm:batch,M,N,K,H or attention:heads,M,N,K,H, a JSON file, or the key of a "
            "kernel or of a chain",
        ),
    ],
    device: Annotated[
        str | None,
        typer.Option(
            help=f"one of {', '.join(names())}; else a kernel's own, or {HOST}",
            autocompletion=devices_begun,
        ),
    ] = None,
    dtype: DtypeOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Say which kept kernel a chain would use on a device, or why none, field by field."""
    from mcfuser.backends import backend_of
    from mcfuser.tune.lookup import damage, here, look_up
    from mcfuser_service.explaining import Asked, asked_of
    from mcfuser_service.settings import read_settings
    from mcfuser_service.team import layered

    settings = read_settings()
    with opened_store() as store:
        asked = asked_of(store, chain) or Asked(read_chain(chain, dtype).key)
        target = device_named(device or asked.device or HOST)
        backend = backend_of(target)
        now = here(target, backend, asked.space, asked.shifts)
        layers = layered(store, settings.team)
        found = look_up(layers, asked.chain_key, now, partial(damage, backend))
    if as_json:
        print_document(found.to_json())
        return
    for sentence in found.sentences:
        say(sentence)


@app.command()
def prune(
    days: Annotated[
        float | None, typer.Option(min=0.0, max=DAYS, help="those kept longer ago than this")
    ] = None,
    device: KernelDeviceOption = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="those made with other programs or sources")
    ] = False,
    damaged: Annotated[bool, typer.Option("--damaged", help="those that cannot be read")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would go")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove kernels, with the candidates of their searches: those that meet every condition."""
    from mcfuser.tune.lookup import Ages
    from mcfuser_service.kept import Pruning, every_kernel

    before = datetime.now(UTC) - timedelta(days=days) if days is not None else None
    asked = Pruning(before, device_name(device), stale, damaged)
    if asked.is_empty:
        raise InputError("say what to remove: --days N, --device D, --stale or --damaged")
    with opened_store() as store:
        ages = Ages()
        rows = every_kernel(store, asked.device)
        keys = [row.key for row in rows if asked.meets(store, row, ages)]
        waiting = asked.searches(store)
        if not dry_run:
            store.prune([*keys, *waiting])
    if as_json:
        print_document({"kernels": keys, "unfinished": waiting, "removed": not dry_run})
        return
    for key in (*keys, *waiting):
        out.print(key, highlight=False)
    did = "would be removed" if dry_run else "were removed"
    out.print(f"{len(keys)} kernels and {len(waiting)} interrupted searches {did}", highlight=False)


# --- what several of them do


def _listed(row: KernelRow, age: AgeHere) -> dict[str, Any]:
    return {
        "key": row.key,
        "chain": row.chain,
        "chain_key": row.chain_key,
        "device": row.device,
        "expression": row.expression,
        "measured": row.measured,
        "predicted": row.predicted,
        "created": row.created.isoformat(),
        "age": age[0],
        "reasons": list(age[1]),
    }


def _line(d: Mapping[str, Any]) -> str:
    seconds = d["measured"] if d["measured"] is not None else d["predicted"]
    time = f"{seconds * 1e6:.1f} us" + (" predicted" if d["measured"] is None else "")
    day = d["created"][:10]
    return f"{d['key'][:_SHOWN]}  {d['age']}  {day}  {d['device']}  {d['chain']}  {time}"


def _candidate(t: Mapping[str, Any]) -> str:
    tiles = " ".join(f"{a}={n}" for a, n in t["tiles"].items())
    knobs = " ".join(f"{k}={v}" for k, v in t["lowering"].items())
    split = f"  {t['split']} in {t['parts']} parts" if t["split"] else ""
    return f"  {t['measured'] * 1e6:.1f} us  {t['expression']}  {tiles}{split}  {knobs}"
