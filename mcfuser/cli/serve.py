"""`mcfuser serve`: compilation over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one")] = None,
    data: Annotated[Path | None, typer.Option(help="folder of models, modules, database")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="ask for no key on another host than loopback")
    ] = False,
) -> None:
    """Serve compilation over HTTP; settings come from MCFUSER_* and these options."""
    from mcfuser_service.serve import serve as serve_settings
    from mcfuser_service.settings import read_settings

    options = {
        "host": host,
        "port": port,
        "data": data.expanduser().resolve() if data else None,
        "insecure": insecure or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    serve_settings(read_settings(**given))
