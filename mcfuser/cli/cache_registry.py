"""`mcfuser cache push` and `pull`: kept kernels as an artefact in an OCI registry."""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcfuser.arguments.duration import LONGEST, seconds
from mcfuser.arguments.files import check_readable, read_bounded
from mcfuser.cli.cache_exchange import (
    KernelTimeout,
    finish_import,
    gathered,
    imported,
)
from mcfuser.cli.console import say
from mcfuser.cli.documents import print_document
from mcfuser.cli.kernels import KernelChainOption, KernelDeviceOption
from mcfuser.cli.options import JsonOption
from mcfuser.errors import InputError

if TYPE_CHECKING:
    from mcfuser_service.export import Export
    from mcfuser_service.oci.transfer import Login

_LONGEST = 4096  # bytes of a password

ReferenceArgument = Annotated[
    str, typer.Argument(metavar="REFERENCE", help="oci://HOST/REPOSITORY:TAG")
]
PulledArgument = Annotated[
    str,
    typer.Argument(
        metavar="REFERENCE", help="oci://HOST/REPOSITORY:TAG, or with @sha256:DIGEST for the tag"
    ),
]
UsernameOption = Annotated[
    str | None, typer.Option(help="instead of what docker login has kept; it needs a password")
]
PasswordFileOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="the password is the first line of this file")
]
PasswordStdinOption = Annotated[
    bool, typer.Option("--password-stdin", help="the password is the first line of standard input")
]
PlainHttpOption = Annotated[
    bool, typer.Option("--plain-http", help="speak plain HTTP to a registry on another machine")
]
TransferTimeout = Annotated[str, typer.Option(help="for the transfer, as 60s or 5m")]


def push(
    reference: ReferenceArgument,
    device: KernelDeviceOption = None,
    chain: KernelChainOption = None,
    username: UsernameOption = None,
    password_file: PasswordFileOption = None,
    password_stdin: PasswordStdinOption = False,
    plain_http: PlainHttpOption = False,
    transfer_timeout: TransferTimeout = "5m",
    as_json: JsonOption = False,
) -> None:
    """Push the schedules of tuned kernels to an OCI registry, as what export writes."""
    from mcfuser_service.oci import transfer
    from mcfuser_service.oci.reference import read_reference

    where = read_reference(reference)
    access = _access(username, password_file, password_stdin, plain_http, transfer_timeout)
    made = gathered(device, chain)
    if not made.kernels:
        raise InputError(
            "no kernel is kept that could be pushed; mcfuser cache list shows what there is"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.jsonl"
        file.write_bytes(made.data)
        digest = transfer.push(file, where, _annotations(made), access)
    if as_json:
        print_document({"reference": str(where), "digest": digest, **made.to_json()})
        return
    words = f"pushed {made.kernels} kernels to {where} ({digest})"
    say(words)


def pull(
    reference: PulledArgument,
    timeout: KernelTimeout = "60s",
    username: UsernameOption = None,
    password_file: PasswordFileOption = None,
    password_stdin: PasswordStdinOption = False,
    plain_http: PlainHttpOption = False,
    transfer_timeout: TransferTimeout = "5m",
    as_json: JsonOption = False,
) -> None:
    """Pull schedules from an OCI registry, and take them as import does: each kernel is generated,
    built and checked here before it is kept. The status is 1 where a line was refused."""
    from mcfuser_service.oci import transfer
    from mcfuser_service.oci.reference import read_reference

    where, limit = read_reference(reference), seconds(timeout, most=LONGEST)
    access = _access(username, password_file, password_stdin, plain_http, transfer_timeout)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.jsonl"
        found = transfer.pull(file, where, access)
        done = imported(file, limit)
    if not as_json:
        say(f"pulled {where} ({found.digest})")
    finish_import(done, {"reference": str(where), "digest": found.digest}, as_json)


def _annotations(made: Export) -> dict[str, str]:
    """What can be told of an artefact without fetching it."""
    from mcfuser.tune.exchange import VERSION

    now = datetime.now(UTC).replace(microsecond=0)
    return {
        "org.opencontainers.image.created": now.isoformat().replace("+00:00", "Z"),
        "org.opencontainers.image.title": "tuned kernels of mcfuser",
        "vnd.mcfuser.version": version("mcfuser"),
        "vnd.mcfuser.format": str(VERSION),
        "vnd.mcfuser.kernels": str(made.kernels),
        "vnd.mcfuser.devices": ", ".join(sorted(made.devices)),
        "vnd.mcfuser.toolchain": ", ".join(sorted(made.toolchain)),
    }


def _access(
    username: str | None,
    password_file: Path | None,
    password_stdin: bool,
    plain_http: bool,
    timeout: str,
) -> Login:
    """How a registry is spoken to. Raises InputError."""
    from mcfuser_service.oci.transfer import Login

    limit = seconds(timeout, "transfer-timeout", LONGEST)
    if username is None:
        if password_file is not None or password_stdin:
            raise InputError("there is a password and no user; give --username, too")
        return Login(plain_http, seconds=limit)
    if ":" in username or not username.isprintable():
        raise InputError(f"user name '{username}' has a colon or a control character; mend it")
    return Login(plain_http, username, _password(username, password_file, password_stdin), limit)


def _password(username: str, file: Path | None, stdin: bool) -> str:
    """The password of a user, from where it is; it is asked for on a terminal. Raises
    InputError."""
    if file is not None and stdin:
        raise InputError("the password is in a file or on standard input, not in both; choose one")
    if file is not None:
        what = f"password file '{file}'"
        check_readable(file, what)
        data = read_bounded(file, what, _LONGEST)
    elif stdin:
        data = sys.stdin.buffer.read(_LONGEST)
    elif sys.stdin.isatty():
        words: str = typer.prompt(f"password of {username}", hide_input=True, err=True)
        data = words.encode()
    else:
        raise InputError(
            f"there is no password for user '{username}', and no terminal to ask for it; give "
            "--password-file FILE or --password-stdin"
        )
    try:
        password = data.decode().partition("\n")[0].rstrip("\r")
    except UnicodeDecodeError:
        raise InputError(f"the password of user '{username}' is not UTF-8; mend it") from None
    if not password:
        raise InputError(f"the password of user '{username}' is empty; give one")
    return password
