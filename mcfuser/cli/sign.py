"""`mcfuser sign`: signs what compile wrote; and the options of other commands that sign."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcfuser.cli.console import say
from mcfuser.cli.documents import print_document
from mcfuser.cli.options import JsonOption
from mcfuser.cli.results import write_whole
from mcfuser.errors import InputError

if TYPE_CHECKING:
    from mcfuser.signing.key import SigningKey

SignOption = Annotated[
    Path | None,
    typer.Option(
        "--sign", metavar="KEY", help="sign the results with this Ed25519 private key (PEM)"
    ),
]
PassphraseOption = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help="the passphrase of an encrypted key; without it, it is asked for on the terminal",
    ),
]


def sign(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="folders that compile wrote")
    ],
    key: Annotated[
        Path | None, typer.Option("--key", metavar="KEY", help="an Ed25519 private key (PEM)")
    ] = None,
    passphrase_file: PassphraseOption = None,
    statement: Annotated[
        bool, typer.Option("--statement", help="print what is to be signed, for another signer")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Sign what compile wrote.

    The signature of module.so and report.json is in module.intoto.jsonl, beside them.
    """
    from mcfuser.signing.folder import ENVELOPE
    from mcfuser.signing.folder import sign as sign_folder

    if statement == (key is not None):
        raise InputError("say with which key to sign, --key KEY, or ask for the --statement alone")
    private = signing_key(key, passphrase_file)
    lines = {folder: sign_folder(folder, private) for folder in folders}
    if private is None and as_json:
        print_document({"statements": [line.decode() for line in lines.values()]})
        return
    for folder, line in lines.items():
        if private is None:
            print(line.decode(), end="")
            continue
        write_whole(folder / ENVELOPE, line)
        if not as_json:
            say(f"wrote {folder / ENVELOPE}")
    if as_json:
        print_document({"envelopes": [str(folder / ENVELOPE) for folder in folders]})


def signing_key(path: Path | None, passphrase_file: Path | None) -> SigningKey | None:
    """The key in a file; None where there is no path. Where it is encrypted, its passphrase is in a
    file, or is asked for. Raises InputError."""
    if path is None:
        if passphrase_file is not None:
            raise InputError("there is a passphrase and no key; give the key, too")
        return None
    from mcfuser.signing.key import read_passphrase, read_signing_key

    def passphrase() -> bytes:
        if passphrase_file is not None:
            return read_passphrase(passphrase_file)
        if not sys.stdin.isatty():
            raise InputError(
                f"signing key '{path}' is encrypted, and there is no terminal to ask for its "
                "passphrase; give it in a file: --passphrase-file FILE"
            )
        words: str = typer.prompt(f"passphrase of {path}", hide_input=True, err=True)
        return words.encode()

    return read_signing_key(path, passphrase)
