"""Command lines that typer cannot parse: one sentence each, without boxes."""

from __future__ import annotations

import json
from typing import Annotated

import pytest
import typer

from mcfuser.cli.command import app
from mcfuser.cli.mistakes import usage_sentence
from mcfuser.cli.terminal import ended

SENTENCES = {
    ("tun",): "command 'tun' is not known (the nearest is 'tune'); 'mcfuser -h' lists all",
    ("zzz",): "command 'zzz' is not known; 'mcfuser -h' lists all",
    ("--seed", "1"): "the command has no option '--seed'; 'mcfuser -h' lists all",
    ("space",): (
        "space needs CHAIN: gemm:batch,M,N,K,H or attention:heads,M,N,K,H or a JSON file; see "
        "'mcfuser space -h'"
    ),
    ("compile", "m.onnx"): (
        "compile needs the option --output or -o: a folder for the results; see "
        "'mcfuser compile -h'"
    ),
    ("compile", "m.onnx", "-o"): "option -o needs a value; see 'mcfuser compile -h'",
    ("space", "c.json", "--devic", "h100"): (
        "space has no option '--devic' (the nearest is '--device'); 'mcfuser space -h' lists all"
    ),
    ("space", "c.json", "-x"): "space has no option '-x'; 'mcfuser space -h' lists all",
    ("tune", "c.json", "--seed", "one"): (
        "option --seed is 'one': input should be a valid integer, unable to parse string as an "
        "integer; see 'mcfuser tune -h'"
    ),
    ("tune", "c.json", "--seed", "-1"): (
        "option --seed is '-1': input should be greater than or equal to 0; see 'mcfuser tune -h'"
    ),
    ("space", "c.json", "--json=3"): "option --json takes no value; see 'mcfuser space -h'",
    ("run", "a", "b", "c"): "run takes FOLDER, and 'b c' is too much; see 'mcfuser run -h'",
    ("devices", "x"): "devices takes no arguments, and 'x' is too much; see 'mcfuser devices -h'",
    ("\x1b[31m",): r"command '\x1b[31m' is not known; 'mcfuser -h' lists all",
    ("x" * 200,): f"command '{'x' * 78} …' is not known; 'mcfuser -h' lists all",
}  # fmt: skip


@pytest.mark.parametrize("words", SENTENCES, ids=lambda words: " ".join(words)[:30])
def test_a_command_line_that_is_none_is_one_sentence(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(app, words) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"mcfuser: {SENTENCES[words]}\n")


def test_with_json_it_is_a_document_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(app, ("tun", "--json")) == 2
    told = capsys.readouterr()
    sentence = SENTENCES[("tun",)]
    assert json.loads(told.out) == {"problem": {"kind": "usage", "detail": sentence, "status": 2}}
    assert told.err == f"mcfuser: {sentence}\n"


def test_nothing_at_all_gives_the_help_and_the_status_of_a_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(app, ()) == 2
    assert "Usage: mcfuser" in "".join(capsys.readouterr())


def commands(group: typer.main.TyperGroup, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words of every command that is registered."""
    found = []
    for name, command in group.commands.items():
        found.append((*path, name))
        if isinstance(command, typer.core.TyperGroup):
            found += commands(command, (*path, name))
    return found


@pytest.mark.parametrize("words", commands(typer.main.get_command(app)), ids=" ".join)  # type: ignore[arg-type]
def test_every_command_has_a_short_help_and_refuses_in_one_sentence(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(app, (*words, "-h")) == 0
    helped = capsys.readouterr().out
    assert f"Usage: mcfuser {' '.join(words)}" in helped and "--help" in helped
    assert ended(app, (*words, "--no-such-option")) == 2
    assert capsys.readouterr().err.startswith(
        f"mcfuser: {' '.join(words)} has no option '--no-such-option'"
    )


def test_sub_applications_and_errors_of_no_known_class() -> None:
    inner, outer = typer.Typer(), typer.Typer()

    @inner.command("show")
    def show(level: Annotated[int, typer.Option()] = 0) -> None: ...

    @inner.command("list")
    def list_() -> None: ...

    outer.add_typer(inner, name="cache")
    outer.command("other")(list_)

    def sentence(*words: str) -> str:
        with pytest.raises(typer.TyperException) as wrong:
            outer(list(words), prog_name="mcfuser", standalone_mode=False)
        return usage_sentence(wrong.value, outer, words)

    assert sentence("cache") == "cache needs a command; 'mcfuser cache -h' lists all"
    assert sentence("cache", "lst") == (
        "command 'lst' is not known (the nearest is 'list'); 'mcfuser cache -h' lists all"
    )
    assert sentence("cache", "show", "--level") == (
        "option --level needs a value; see 'mcfuser cache show -h'"
    )
    strange = typer.TyperException("Something Else.")
    assert usage_sentence(strange, outer, ("cache", "x")) == (
        "something Else; see 'mcfuser cache -h'"
    )


def test_the_help_is_plain_text_and_no_sentence_of_ours_is_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(app, ("-h",)) == 0
    helped = capsys.readouterr().out
    assert helped.isascii() and "..." not in helped.replace("[ARGS]...", "")
