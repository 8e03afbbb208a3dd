"""`mcfuser model refit`: the model's constants, fitted to the candidates that were kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mcfuser.cli.console import progress, say
from mcfuser.cli.documents import print_document
from mcfuser.cli.kept import opened_store
from mcfuser.cli.options import JsonOption, devices_begun
from mcfuser.devices.catalogue import device_named, names
from mcfuser.errors import InputError
from mcfuser.tune.progress import Listener, Progress

if TYPE_CHECKING:
    from mcfuser.tune.refit import Refit
    from mcfuser.tune.tried import Tried
    from mcfuser.tune.tuned import Tuned
    from mcfuser_db import Storage

app = typer.Typer(no_args_is_help=True, help="The model that predicts times.")


@app.callback()
def start() -> None:
    """The model that predicts times."""


@app.command()
def refit(
    device: Annotated[
        str, typer.Option(help=f"one of {', '.join(names())}", autocompletion=devices_begun)
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what was found")] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="go back to the constants before the last refit")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Fit the model's constants to the candidates that searches on a device have kept.

    They are used from then on if chains that the fit has not seen are ranked better by them.
    """
    if reset and dry_run:
        raise InputError("--reset and --dry-run contradict each other; leave one of them out")
    with opened_store() as store:
        if reset:
            _reset(store, device_named(device).name, as_json)
            return
        found, version = _refitted(store, device, dry_run)
    if as_json:
        constants = dict(found.constants)
        print_document({**found.to_json(), "constants": constants, "version": version})
        return
    _tell(found, version, device, dry_run)


def _refitted(store: Storage, name: str, dry_run: bool) -> tuple[Refit, int | None]:
    """What was found, and the version under which it is kept, None if it is not."""
    from mcfuser.backends import backend_of
    from mcfuser.tune.refit import refit as fitted
    from mcfuser_db.constants import keep_constants

    target = store.probed(device_named(name))
    with progress() as tell:
        found = fitted(_kept(store, target.name, tell), target, backend_of(target))
    if dry_run or not found.better:
        return found, None
    return found, keep_constants(store, target.name, found.constants, found.to_json())


def _kept(store: Storage, device: str, tell: Listener) -> Iterator[tuple[Tuned, Sequence[Tried]]]:
    """The kernels of a device with their candidates, the newest first."""
    from mcfuser_service.kept import every_kernel

    for number, row in enumerate(every_kernel(store, device)):
        tell(Progress("refit", number))
        if (tuned := store.get(row.key)) is not None:
            yield tuned, store.tried(row.key)


def _reset(store: Storage, device: str, as_json: bool) -> None:
    from mcfuser_db.constants import reset_constants

    version = reset_constants(store, device)
    if version is None:
        raise InputError(
            f"the constants of {device} were never refitted; there is nothing to reset"
        )
    if as_json:
        print_document({"device": device, "version": version})
        return
    now = f"version {version}" if version else "those of the catalogue"
    say(f"the constants of {device} are {now} again")


def _tell(found: Refit, version: int | None, device: str, dry_run: bool) -> None:
    few = f"; {len(found.few)} chains have too few to be used" if found.few else ""
    say(f"used {found.candidates} candidates of {len(found.chains)} chains{few}")
    before, after = found.before, found.after
    say(
        "chains that the fit has not seen: rank correlation (Spearman) "
        f"{before.spearman:.3f} before, {after.spearman:.3f} after; best of the first 8 "
        f"{before.top:.3f} times the best before, {after.top:.3f} after"
    )
    if version is not None:
        say(f"kept as version {version}; mcfuser model refit --device {device} --reset goes back")
    elif not found.better:
        say("nothing was kept: the ranking is not better")
    elif dry_run:
        say("nothing was kept: it was a dry run")
