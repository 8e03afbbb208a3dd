"""The `mcfuser` command."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import Annotated

import typer

from mcfuser.cli.batch import batch
from mcfuser.cli.bisect import bisect
from mcfuser.cli.cache import app as cache
from mcfuser.cli.compile import compile_
from mcfuser.cli.devices import device, devices
from mcfuser.cli.doctor import doctor
from mcfuser.cli.explain import explain
from mcfuser.cli.freeze import freeze
from mcfuser.cli.keys import app as keys
from mcfuser.cli.model import app as model
from mcfuser.cli.run import run
from mcfuser.cli.serve import serve
from mcfuser.cli.sign import sign
from mcfuser.cli.space import space
from mcfuser.cli.terminal import ended
from mcfuser.cli.tune import tune
from mcfuser.cli.verify import verify
from mcfuser.cli.version import print_version
from mcfuser.process.load import leave_out_torch

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help is plain text: quick to print, and whole in a pipe
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compile")(compile_)
app.command("tune")(tune)
app.command("space")(space)
app.command("explain")(explain)
app.command("freeze")(freeze)
app.command("run")(run)
app.command("sign")(sign)
app.command("verify")(verify)
app.command("bisect")(bisect)
app.command("serve")(serve)
app.command("batch")(batch)
app.add_typer(cache, name="cache")
app.add_typer(keys, name="keys")
app.add_typer(model, name="model")
app.command("devices")(devices)
app.command("device")(device)
app.command("doctor")(doctor)


@app.callback()
def start(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="print the versions, and exit"
        ),
    ] = False,
) -> None:
    """Compile ONNX models into TVM modules in which chains of operators are single tuned
    kernels."""


def main() -> None:
    """Runs the command and ends the process.

    A user's mistake gives one sentence on standard error and status 2; a limit that was reached, a
    compiler that crashed, or a module that is wrong, gives one sentence and status 1. With --json
    the same sentence is also a document on standard output (mcfuser.cli.documents).
    """
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    leave_out_torch()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends children first
    sys.exit(ended(app))


if __name__ == "__main__":
    main()
