"""`mcfuser cache export`, `import`, `verify` and `refresh`: kernels on their way between machines,
and whether those that are kept are still what is made here."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcfuser.arguments.duration import LONGEST, seconds
from mcfuser.arguments.files import check_readable
from mcfuser.cli.console import out, progress, say
from mcfuser.cli.documents import print_document
from mcfuser.cli.kept import make_data_folder, opened_store
from mcfuser.cli.kernels import KernelChainOption, KernelDeviceOption, device_name
from mcfuser.cli.options import JsonOption
from mcfuser.cli.results import check_writable, make_results, write_whole
from mcfuser.errors import InputError, LimitError
from mcfuser.finite import finite
from mcfuser.tune.progress import Progress

if TYPE_CHECKING:
    from mcfuser_service.export import Export
    from mcfuser_service.importing import Imported


class ExportFormat(StrEnum):
    """The forms in which kernels are written."""

    LINES = "lines"
    T4 = "t4"


KernelTimeout = Annotated[
    str, typer.Option("--timeout", help="for building and checking one kernel, as 60s or 5m")
]


def export(
    file: Annotated[
        Path, typer.Argument(help="the file to write, - for standard output; with t4 a folder")
    ],
    device: KernelDeviceOption = None,
    chain: KernelChainOption = None,
    form: Annotated[
        ExportFormat,
        typer.Option("--format", help="lines, for import; or t4: all candidates of each kernel"),
    ] = ExportFormat.LINES,
    as_json: JsonOption = False,
) -> None:
    """Write the schedules of tuned kernels as lines of JSON, without sources and binaries."""
    if form is ExportFormat.T4:
        _export_t4(file, device, chain, as_json)
        return
    if str(file) == "-" and as_json:
        raise InputError("the kernels go to standard output, and so would --json; name a file")
    made = gathered(device, chain)
    if str(file) == "-":
        sys.stdout.write(made.data.decode())
        return
    write_whole(file, made.data)
    if as_json:
        print_document({"file": str(file), **made.to_json()})
        return
    say(f"wrote {made.kernels} kernels to {file}")


def _export_t4(folder: Path, device: str | None, chain: str | None, as_json: bool) -> None:
    """Writes a T4 document for each kernel to a folder, which is made if it is missing."""
    if str(folder) == "-":
        raise InputError("t4 is a file for each kernel; name a folder for them, not -")
    from mcfuser_service.export import t4_documents

    on, files, candidates = device_name(device), list[str](), 0
    check_writable(folder)
    make_results(folder)
    with opened_store() as store:
        for key, document in t4_documents(store, on, chain):
            path = folder / f"{key}.json"
            write_whole(path, json.dumps(finite(document), allow_nan=False).encode())
            files.append(str(path))
            candidates += len(document["results"])
    if as_json:
        print_document({"files": files, "candidates": candidates})
        return
    words = f"wrote {candidates} candidates of {len(files)} kernels to {folder}"
    say(words)


def gathered(device: str | None, chain: str | None) -> Export:
    """The kernels that are kept for a device and of a chain, where these are given, as a file."""
    from mcfuser_service.export import collected, exported

    on = device_name(device)
    with opened_store() as store:
        return collected(exported(store, on, chain))


def import_(
    file: Annotated[Path, typer.Argument(help="a file that export wrote")],
    timeout: KernelTimeout = "60s",
    as_json: JsonOption = False,
) -> None:
    """Take the schedules of a file: each kernel is generated, built and checked here before it is
    kept. The status is 1 where a line was refused."""
    limit = seconds(timeout, most=LONGEST)
    check_readable(file, f"file of kernels '{file}'")
    finish_import(imported(file, limit), {}, as_json)


def imported(file: Path, limit: float) -> Imported:
    """What became of the lines of a file, each of whose kernels had `limit` seconds."""
    from mcfuser_service.importing import import_kernels
    from mcfuser_service.settings import read_settings

    settings = read_settings()
    make_data_folder(settings.data)
    with progress() as tell:
        return import_kernels(file, settings.database_url, settings.job_memory, limit, tell)


def finish_import(done: Imported, more: Mapping[str, Any], as_json: bool) -> None:
    """Tells what became of the lines of a file, in JSON with `more` fields. The status is 1 where a
    line was refused."""
    if as_json:
        print_document({**more, **done.to_json()})
    else:
        for line, words in done.refused.items():
            say(f"line {line} is refused: {words}")
        out.print(
            f"{done.kept} kernels were built, checked and kept; {done.known} were there already; "
            f"{len(done.refused)} lines were refused",
            highlight=False,
        )
    if done.refused:
        raise typer.Exit(1)


def verify(
    device: KernelDeviceOption = None,
    generate: Annotated[
        bool,
        typer.Option("--generate/--no-generate", help="generate each source anew, and compare"),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Check every kept kernel: its record can be read and is as it was written, and the code
    generator still makes its source. The status is 1 where one is damaged or has changed."""
    from mcfuser.tune.lookup import Ages
    from mcfuser_service.kept import every_kernel, soundness

    found: list[dict[str, Any]] = []
    with opened_store() as store, progress() as tell:
        ages, total = Ages(), store.kernel_count()
        for row in every_kernel(store, device_name(device)):
            tell(Progress("verify", len(found), total))
            state, why = soundness(store, row, ages, generate)
            found.append({
                "key": row.key, "chain": row.chain, "device": row.device, "state": state,
                "reasons": list(why),
            })  # fmt: skip
    counts = Counter(f["state"] for f in found)
    if as_json:
        print_document({"counts": counts, "kernels": found})
    else:
        for f in found:
            if f["state"] != "sound":
                words = f"kernel {f['key']} is {f['state']}: {'; '.join(f['reasons'])}"
                say(words)
        told = ", ".join(f"{n} {state}" for state, n in counts.items()) or "none is kept"
        out.print(f"{len(found)} kernels: {told}", highlight=False)
    if counts["damaged"] or counts["changed"]:
        raise typer.Exit(1)


def refresh(
    device: KernelDeviceOption = None,
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
        print_document({"refreshed": done, "failed": refused})
        return
    for key, why in failed.items():
        say(f"kernel {key} stays stale: {why}")
    out.print(f"{len(done)} stale kernels were measured again", highlight=False)
