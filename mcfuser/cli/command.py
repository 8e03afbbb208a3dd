"""The `mcfuser` command."""

from __future__ import annotations

import signal
import sys
import warnings

import typer

from mcfuser.cli.batch import batch
from mcfuser.cli.bisect import bisect
from mcfuser.cli.compile import compile_
from mcfuser.cli.devices import device, devices
from mcfuser.cli.explain import explain
from mcfuser.cli.keys import app as keys
from mcfuser.cli.run import run
from mcfuser.cli.serve import serve
from mcfuser.cli.space import space
from mcfuser.cli.terminal import ended
from mcfuser.cli.tune import tune

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.command("compile")(compile_)
app.command("tune")(tune)
app.command("space")(space)
app.command("explain")(explain)
app.command("run")(run)
app.command("bisect")(bisect)
app.command("serve")(serve)
app.command("batch")(batch)
app.add_typer(keys, name="keys")
app.command("devices")(devices)
app.command("device")(device)


def main() -> None:
    """Runs the command and ends the process.

    A user's mistake gives one sentence on standard error and status 2; a limit that was reached, a
    compiler that crashed, or a module that is wrong, gives one sentence and status 1.
    """
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends children first
    sys.exit(ended(app))


if __name__ == "__main__":
    main()
