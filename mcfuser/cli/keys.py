"""`mcfuser keys`: the API keys of a server, in the database that `mcfuser serve` uses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcfuser.cli.console import err, say
from mcfuser.cli.kept import opened_database
from mcfuser.cli.options import JsonOption
from mcfuser.errors import InputError

if TYPE_CHECKING:
    from mcfuser_db import ApiKey, Storage

DataOption = Annotated[
    Path | None, typer.Option(help="the server's folder, as `mcfuser serve` has it")
]

app = typer.Typer(no_args_is_help=True, help="API keys: who may use a server.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="for people, such as 'ci'")],
    scopes: Annotated[
        str, typer.Option(help="of submit, read, import and admin, parted by commas")
    ] = "submit,read",
    rate: Annotated[str | None, typer.Option(help="most requests by s, m, h or d: 60/m")] = None,
    queued: Annotated[int | None, typer.Option(help="most jobs in the queue at once")] = None,
    disk: Annotated[str | None, typer.Option(help="most of models and modules: 10GB")] = None,
    expires: Annotated[str | None, typer.Option(help="12h, 90d or 4w from now")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it; it is shown this once and kept nowhere."""
    from mcfuser_db.api_keys import NameTaken, make_key
    from mcfuser_service.keys import KeyMade, KeyOut, read_key

    given = {"rate": rate, "queued": queued, "disk": disk, "expires": expires}
    words = [s.strip() for s in scopes.split(",") if s.strip()]
    asked = read_key({"name": name, "scopes": words, **given})
    with _opened(data) as store:
        try:
            row, text = make_key(store, asked.grant)
        except NameTaken as taken:
            raise InputError(f"{taken}; revoke it or choose another name") from None
    if as_json:
        made = KeyMade.model_validate({**KeyOut.fields_of(row), "key": text.words})
        print(made.model_dump_json())
        return
    print(text.words)
    err.print(
        f"key '{name}' may {', '.join(row.scopes)}; this is the only time that it is shown: give "
        "it to programs as MCFUSER_API_KEY",
        highlight=False, markup=False,
    )  # fmt: skip


@app.command("list")
def list_(data: DataOption = None, as_json: JsonOption = False) -> None:
    """List all keys, the newest first, with those that were revoked."""
    from mcfuser_db.api_keys import api_keys
    from mcfuser_service.keys import KeyOut

    with _opened(data) as store:
        rows, now = api_keys(store), store.now()
    if as_json:
        print(json.dumps([KeyOut.of(row).model_dump(mode="json") for row in rows]))
        return
    if not rows:
        print("there is no key; mcfuser keys create NAME makes one")
        return
    head = ("id", "state", "scopes", "rate", "queued", "disk", "used", "name")
    _print_columns([head, *(_cells(row, KeyOut.fields_of(row), now) for row in rows)])


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="NAME|ID", help="the key's name or id")],
    data: DataOption = None,
) -> None:
    """Revoke a key, for ever; servers refuse it within five seconds, and its jobs go on."""
    from mcfuser_db.api_keys import api_keys, revoke_key

    with _opened(data) as store:
        live = [row for row in api_keys(store) if row.revoked is None]
        # a name is looked for first: it may look like the id of another key
        named = [r for r in live if r.name == key] or [r for r in live if r.id == key]
        if not named or not revoke_key(store, named[0].id):
            raise InputError(
                f"no key that is not revoked is called '{key}' or has this id; list them with "
                "mcfuser keys list"
            )
    say(f"key '{named[0].name}' ({named[0].id}) is revoked")


@contextmanager
def _opened(data: Path | None) -> Iterator[Storage]:
    """The database of the server with this folder. Raises InputError where it cannot be used."""
    from mcfuser_service.settings import read_settings

    settings = read_settings(**({"data": data.expanduser().resolve()} if data else {}))
    advice = "look at MCFUSER_DATABASE and MCFUSER_DATA, and at the room on the disk"
    with opened_database(settings, "the database of the server", advice) as store:
        yield store


def _cells(row: ApiKey, fields: dict[str, Any], now: datetime) -> tuple[str, ...]:
    used = f"{row.used:%Y-%m-%d %H:%M}" if row.used is not None else "never"
    rate, queued, disk = (str(fields[n] or "-") for n in ("rate", "queued", "disk"))
    return (row.id, _state(row, now), ",".join(row.scopes), rate, queued, disk, used, row.name)


def _state(row: ApiKey, now: datetime) -> str:
    if row.revoked is not None:
        return f"revoked {row.revoked:%Y-%m-%d}"
    if row.expires is None:
        return "valid"
    return f"{'valid to' if row.expires > now else 'expired'} {row.expires:%Y-%m-%d}"


def _print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    """Rows in columns; the last one may be of any length."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say("  ".join(cells).rstrip())
