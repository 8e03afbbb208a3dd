"""`mcfuser serve`: compilation over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mcfuser.cli.documents import print_document
from mcfuser.cli.options import JsonOption


def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one")] = None,
    data: Annotated[Path | None, typer.Option(help="folder of models, modules, database")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="ask for no key on another host than loopback")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve compilation over HTTP.

    Settings come from the variables MCFUSER_* and these options. With --json the address is printed
    once the server listens, which tells the port of --port 0.
    """
    from mcfuser_service.serve import serve as serve_settings
    from mcfuser_service.settings import read_settings

    options = {
        "host": host,
        "port": port,
        "data": data.expanduser().resolve() if data else None,
        "insecure": insecure or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    settings = read_settings(**given)

    def told(url: str) -> None:
        print_document({"url": url, "data": str(settings.data)})
        sys.stdout.flush()  # whoever reads it waits for it

    if as_json:
        serve_settings(settings, opened=told)
        return
    serve_settings(settings)
