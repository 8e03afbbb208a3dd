"""`mcfuser cache export`, `import`, `verify` and `refresh`: kernels on their way between machines,
and whether those that are kept are still what is made here."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcfuser.arguments.duration import LONGEST, seconds
from mcfuser.arguments.files import check_readable
from mcfuser.cli.console import out, progress
from mcfuser.cli.kept import make_data_folder, opened_store
from mcfuser.cli.kernels import device_name
from mcfuser.cli.options import JsonOption
from mcfuser.cli.results import write_whole
from mcfuser.errors import LimitError
from mcfuser.tune.progress import Progress

if TYPE_CHECKING:
    from mcfuser.tune.tuned import Tuned

KernelTimeout = Annotated[
    str, typer.Option("--timeout", help="for building and checking one kernel, as 60s or 5m")
]


def export(
    file: Annotated[Path, typer.Argument(help="the file to write; - for standard output")],
    device: Annotated[str | None, typer.Option(help="kernels of this device alone")] = None,
    chain: Annotated[str | None, typer.Option(help="of this chain: its name or its key")] = None,
) -> None:
    """Write the schedules of tuned kernels as lines of JSON, without sources and binaries."""
    from mcfuser_service.export import exported

    text, on = io.StringIO(), device_name(device)
    with opened_store() as store:
        lines = -1
        for line in exported(store, on, chain):
            text.write(line)
            lines += 1
    if str(file) == "-":
        sys.stdout.write(text.getvalue())
        return
    write_whole(file, text.getvalue().encode())
    out.print(f"wrote {lines} kernels to {file}", highlight=False, markup=False)


def import_(
    file: Annotated[Path, typer.Argument(help="a file that export wrote")],
    timeout: KernelTimeout = "60s",
    as_json: JsonOption = False,
) -> None:
    """Take the schedules of a file: each kernel is generated, built and checked here before it is
    kept. The status is 1 where a line was refused."""
    limit = seconds(timeout, most=LONGEST)
    check_readable(file, f"file of kernels '{file}'")
    from mcfuser_service.importing import import_kernels
    from mcfuser_service.settings import read_settings

    settings = read_settings()
    make_data_folder(settings.data)
    with progress() as tell:
        done = import_kernels(file, settings.database_url, settings.job_memory, limit, tell)
    if as_json:
        print(json.dumps(done.to_json()))
    else:
        for line, words in done.refused.items():
            out.print(f"line {line} is refused: {words}", highlight=False, markup=False)
        out.print(
            f"{done.kept} kernels were built, checked and kept; {done.known} were there already; "
            f"{len(done.refused)} lines were refused",
            highlight=False,
        )
    if done.refused:
        raise typer.Exit(1)


def verify(
    device: Annotated[str | None, typer.Option(help="kernels of this device alone")] = None,
    generate: Annotated[
        bool,
        typer.Option("--generate/--no-generate", help="generate each source anew, and compare"),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Check every kept kernel: its record can be read and is as it was written, and the code
    generator still makes its source. The status is 1 where one is damaged or has changed."""
    from mcfuser.tune.lookup import Ages
    from mcfuser_service.kept import age_of, every_kernel

    found: list[dict[str, Any]] = []
    with opened_store() as store, progress() as tell:
        ages, total = Ages(), store.kernel_count()
        for row in every_kernel(store, device_name(device)):
            tell(Progress("verify", len(found), total))
            age, reasons = age_of(store, row, ages)
            state, why = _state(store.get(row.key), age, generate)
            found.append({
                "key": row.key, "chain": row.chain, "device": row.device, "state": state,
                "reasons": [why] if why else list(reasons),
            })  # fmt: skip
    counts = Counter(f["state"] for f in found)
    if as_json:
        print(json.dumps({"counts": counts, "kernels": found}))
    else:
        for f in found:
            if f["state"] != "sound":
                words = f"kernel {f['key']} is {f['state']}: {'; '.join(f['reasons'])}"
                out.print(words, highlight=False, markup=False)
        told = ", ".join(f"{n} {state}" for state, n in counts.items()) or "none is kept"
        out.print(f"{len(found)} kernels: {told}", highlight=False)
    if counts["damaged"] or counts["changed"]:
        raise typer.Exit(1)


def _state(tuned: Tuned | None, age: str, generate: bool) -> tuple[str, str]:
    """The state of a kept kernel, and the reason where its age does not say it."""
    if tuned is None:
        return "damaged", "its record cannot be read; it is tuned again when it is asked for"
    if age != "current":
        return age, ""
    from mcfuser.tune.rebuild import changed

    why = changed(tuned) if generate else ""
    return ("changed", why) if why else ("sound", "")


def refresh(
    device: Annotated[str | None, typer.Option(help="kernels of this device alone")] = None,
    timeout: KernelTimeout = "60s",
    as_json: JsonOption = False,
) -> None:
    """Measure stale kernels again, with what is installed here, and keep them as current ones."""
    limit = seconds(timeout, most=LONGEST)
    from mcfuser.tune.lookup import Ages
    from mcfuser_service.kept import every_kernel, refreshed

    done, failed = list[str](), dict[str, str]()
    with opened_store() as store, progress() as tell:
        ages = Ages()
        for row in list(every_kernel(store, device_name(device))):
            tell(Progress("refresh"))
            try:
                if refreshed(store, row, ages, limit):
                    done.append(row.key)
            except LimitError as error:
                failed[row.key] = str(error)
    if as_json:
        refused = [{"key": k, "reason": why} for k, why in failed.items()]
        print(json.dumps({"refreshed": done, "failed": refused}))
        return
    for key, why in failed.items():
        out.print(f"kernel {key} stays stale: {why}", highlight=False, markup=False)
    out.print(f"{len(done)} stale kernels were measured again", highlight=False)
