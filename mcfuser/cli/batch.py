"""`mcfuser batch`: compiles and checks many models."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from mcfuser.arguments.duration import seconds
from mcfuser.cli.batch_progress import shown
from mcfuser.cli.console import err, out
from mcfuser.cli.documents import print_document
from mcfuser.cli.options import JsonOption
from mcfuser.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from mcfuser.batch.locking import Locking
    from mcfuser.batch.results import Batch
    from mcfuser.batch.run import Done
    from mcfuser.batch.server import ServerClient
    from mcfuser.batch.zoo import Entry

MARGIN = 10.0
"""The default of --margin, in per cent."""


class SignalReceived(BaseException):
    """A signal asks the process to end; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def batch(
    zoo: Annotated[
        Path, typer.Argument(metavar="ZOO", help="a TOML file that names models: docs/batch.md")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="a folder for all results")],
    jobs: Annotated[int, typer.Option(help="entries compiled at once", min=1, max=64)] = 1,
    timeout: Annotated[
        str | None, typer.Option(help="for the whole batch, as 30m or 2h; no limit if not given")
    ] = None,
    lock: Annotated[
        Path | None, typer.Option(help="mcfuser.lock: the baselines, and what --locked builds")
    ] = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="build exactly what --lock has, without a search")
    ] = False,
    update_lock: Annotated[
        bool, typer.Option("--update-lock", help="write --lock: kernels and times of this batch")
    ] = False,
    margin: Annotated[
        float, typer.Option(help="per cent by which an entry may be slower than its baseline")
    ] = MARGIN,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="compile on this server, with the key in MCFUSER_API_KEY"),
    ] = None,
    require_devices: Annotated[
        bool, typer.Option("--require-devices", help="end with 4 where a device is not at hand")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compile and check a zoo of models; skip what is unchanged.

    Each is compared with onnxruntime. Ends with 0 where all is well, 1 where a model failed,
    disagreed or got slower than its baseline, 2 where the zoo or an option is wrong, 3 where the
    time was spent before all were done, and 4 where a server or a required device is not there.
    """
    from mcfuser.batch import state, summary
    from mcfuser.batch.remaining import course_of
    from mcfuser.batch.results import Batch, as_document
    from mcfuser.batch.run import left_out, run, works
    from mcfuser.batch.zoo import read_zoo

    console = err if as_json else out
    begun, start, say = datetime.now(UTC), time.monotonic(), _sayer(console)
    end = None if timeout is None else start + seconds(timeout)
    entries = read_zoo(zoo)
    locking = _locking(lock, locked, update_lock, margin)
    if locked and (server is not None or any(e.job is not None for e in entries)):
        raise InputError("--locked builds here, and a server chooses kernels itself: leave one out")
    with state.alone(output), _interruptible():
        given = works(entries, locking, _servers(server))
        done: dict[str, Done] = {}
        number = None
        folder = output / "entries"
        course = course_of(given, folder, jobs)
        spent = partial(_spent, end)
        try:
            with (
                closing(run(given, folder, jobs, spent, course.begin)) as going,
                shown(console, course, end) as tell,
            ):
                for one in going:
                    done[one.entry.folder] = one
                    course.end(one)
                    tell(f"[{len(done)}/{len(given)}] {summary.line(one)}")
        except SignalReceived as interrupt:
            number = interrupt.number
        all_done = tuple(done.get(w.entry.folder) or left_out(w) for w in given)
        took = time.monotonic() - start
        result = Batch(str(zoo), begun, took, all_done, number is not None, require_devices)
        _write(result, output)
        if locking is not None and update_lock:
            _relock(locking, all_done, folder, say)
    say(f"{summary.totals(result)}; {took:.1f} s; see {output / 'summary.md'}")
    if as_json:
        print_document(as_document(result))
    if number is not None:
        raise typer.Exit(128 + number)
    raise typer.Exit(result.status)


def _spent(end: float | None) -> bool:
    """Whether the batch's time is over, which ends at `end` (time.monotonic), if at any time."""
    return end is not None and time.monotonic() > end


def _servers(address: str | None) -> Callable[[Entry], ServerClient | None]:
    """The server of an entry: that of its job, or the one at the address, if one is given. Each is
    connected to once, when it is first asked for. The key in MCFUSER_API_KEY is for the one at the
    address: a zoo may name others, which are not to have it."""
    from mcfuser.batch.address import JOB

    known: dict[str, ServerClient] = {}
    given = address.rstrip("/") if address is not None else None

    def server_of(entry: Entry) -> ServerClient | None:
        job = JOB.fullmatch(entry.job) if entry.job is not None else None
        at = job["server"] if job is not None else given
        if at is None:
            return None
        if at not in known:
            from mcfuser.batch.server import connected  # with an HTTP client, which few need
            from mcfuser_service.settings import read_api_key

            known[at] = connected(at, read_api_key() if at == given else None)
        return known[at]

    return server_of


def _locking(lock: Path | None, exact: bool, update: bool, margin: float) -> Locking | None:
    """How the batch uses a lock. Raises InputError where the options do not fit together."""
    from mcfuser.batch.locking import Locking
    from mcfuser.lock import Lock, read_lock

    if not 0 <= margin <= 10_000:
        raise InputError(f"--margin is {margin:g}; say how many per cent slower an entry may be")
    if exact and update:
        raise InputError("--locked builds what the lock has and --update-lock replaces it: say one")
    if lock is None:
        if exact or update:
            raise InputError("--locked and --update-lock need the lock's file: --lock mcfuser.lock")
        return None
    known = Lock() if update and not lock.exists() else read_lock(lock)
    return Locking(lock, known, exact, None if update else margin / 100)


def _relock(
    locking: Locking, done: Sequence[Done], folder: Path, say: Callable[[str], None]
) -> None:
    """Writes the lock anew, and says what could not be locked."""
    from mcfuser.batch.locking import relocked
    from mcfuser.batch.state import write

    given = [(d.entry, d.device, d.outcome) for d in done]
    lock, unknown = relocked(locking.lock, given, folder)
    write(locking.path, lock.text)
    counts = (f"{len(there.entries)} of {device}" for device, there in lock.devices.items())
    say(f"wrote {locking.path}: entries {', '.join(sorted(counts)) or 'of no device'}")
    for title in unknown:
        say(f"not locked, for its report does not name its kernels: {title}")


def _write(result: Batch, folder: Path) -> None:
    """Writes four documents; where one fails, writes the others, and then raises its
    InputError."""
    from mcfuser.batch.results import as_json, as_junit
    from mcfuser.batch.state import write
    from mcfuser.batch.summary import page
    from mcfuser.batch.web import web_page

    failed: InputError | None = None
    for name, words in (
        ("report.json", as_json(result)),
        ("junit.xml", as_junit(result)),
        ("summary.md", page(result)),
        ("report.html", web_page(result, folder)),
    ):
        try:
            write(folder / name, words)
        except InputError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _sayer(console: Console) -> Callable[[str], None]:
    """Prints sentences to a console."""

    def say(words: str) -> None:
        console.print(words, highlight=False, markup=False)

    return say


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turns SIGINT and SIGTERM, which CI systems send, into the exception SignalReceived."""

    def end(number: int, frame: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)  # the results so far are still written
        raise SignalReceived(number)

    before = {n: signal.signal(n, end) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
