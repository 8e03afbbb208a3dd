"""The `mcfuser` command: its commands, and how it ends."""

from __future__ import annotations

import signal
import sys
import warnings

import typer

from mcfuser.cli.batch import batch
from mcfuser.cli.compile import compile_
from mcfuser.cli.devices import device, devices
from mcfuser.cli.run import run
from mcfuser.cli.serve import serve
from mcfuser.cli.space import explain, space
from mcfuser.cli.terminal import ended
from mcfuser.cli.tune import tune

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.command("compile")(compile_)
app.command("tune")(tune)
app.command("space")(space)
app.command("explain")(explain)
app.command("run")(run)
app.command("serve")(serve)
app.command("batch")(batch)
app.command("devices")(devices)
app.command("device")(device)


def main() -> None:
    """Runs the command; a mistake of the user's is one sentence on stderr and status 2, a limit
    that was reached or a compiler that crashed one and status 1."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends children first
    sys.exit(ended(app))


if __name__ == "__main__":
    main()
