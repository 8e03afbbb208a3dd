"""`mcfuser verify`: compares what compile wrote with what a key has signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcfuser.cli.console import out, say
from mcfuser.cli.documents import print_document
from mcfuser.cli.options import JsonOption
from mcfuser.errors import InputError


def verify(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="the folder that compile wrote")],
    key: Annotated[
        Path, typer.Option("--key", metavar="PUB", help="the signer's Ed25519 public key (PEM)")
    ],
    model: Annotated[
        Path | None,
        typer.Option("--model", help="the model that it should have been compiled from"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the signature of what compile wrote, without loading it.

    The status is 1 where anything is wrong.
    """
    from mcfuser.signing.folder import verify as verify_folder
    from mcfuser.signing.key import read_verifying_key

    public = read_verifying_key(key)
    if not folder.is_dir():
        raise InputError(f"'{folder}' is no folder; give one that compile wrote")
    found = verify_folder(folder, public, model)
    if as_json:
        predicate = found.statement.predicate if found.statement is not None else None
        document = {
            "verified": not found.wrong, "key": found.keyid, "wrong": found.wrong,
            "predicate": predicate,
        }  # fmt: skip
        print_document(document)
    else:
        for sentence in found.wrong:
            say(sentence)
    if found.wrong:
        raise typer.Exit(1)
    if not as_json and found.statement is not None:
        source = found.statement.model.sha256
        out.print(
            f"module.so and report.json are as they were signed by {found.keyid}; they were "
            f"compiled from the model with sha256 {source}",
            highlight=False, markup=False,
        )  # fmt: skip
