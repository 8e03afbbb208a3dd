"""Sentences for command lines that typer cannot parse: unknown commands and options, values that
are missing or of another kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import typer
from typer.main import get_command

NAME = "mcfuser"
"""What the command is called, however it was started."""

_COMMAND = re.compile(r"No such command '(.*?)'\.", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra argument\(s\) \((.*)\)$", re.DOTALL)
_VALUELESS = re.compile(r"Option '(.*?)' (requires an argument|does not take a value)")
_LONGEST = 80  # characters of a word that is quoted


def usage_sentence(error: typer.TyperException, app: typer.Typer, words: Sequence[str]) -> str:
    """What is wrong with a command line (`words`), as a sentence that names the word and what to
    do.

    Typer exports few of the classes of its errors, so they are known by their names; an error of an
    unknown class is told in its own words.
    """
    ctx: Any = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else _path(app, words)
    name = path.removeprefix(f"{NAME} ") if path != NAME else "the command"
    see, lists = f"see '{path} -h'", f"'{path} -h' lists all"
    message = error.message.strip()
    kind = type(error).__name__
    if kind == "NoSuchOption":
        option = str(getattr(error, "option_name", ""))
        return f"{name} has no option {_quoted(option)}{_nearest(option, _known(ctx))}; {lists}"
    if kind == "MissingParameter":
        return f"{name} needs {_described(getattr(error, 'param', None))}; {see}"
    if kind == "BadParameter":
        return f"{_value(error)}; {see}"
    if (unknown := _COMMAND.match(message)) is not None:
        nearest = _nearest(unknown[1], ctx.command.commands if ctx is not None else ())
        return f"command {_quoted(unknown[1])} is not known{nearest}; {lists}"
    if (extra := _EXTRA.match(message)) is not None:
        return f"{name} takes {_arguments(ctx)}, and {_quoted(extra[1])} is too much; {see}"
    if (valueless := _VALUELESS.match(message)) is not None:
        wants = "needs a value" if valueless[2] == "requires an argument" else "takes no value"
        return f"option {valueless[1]} {wants}; {see}"
    if message == "Missing command.":
        return f"{name} needs a command; {lists}"
    return f"{message[:1].lower()}{message[1:].rstrip('.')}; {see}"


def is_help(error: typer.TyperException) -> bool:
    """Whether nothing was asked for, so that the help is to be shown."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _path(app: typer.Typer, words: Sequence[str]) -> str:
    """The command that the first words name, as far as they name one."""
    command: Any = get_command(app)
    path = NAME
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        path += f" {word}"
    return path


def _known(ctx: Any) -> list[str]:
    """The options of a command."""
    params = ctx.command.get_params(ctx) if ctx is not None else ()
    return [o for p in params if p.param_type_name != "argument" for o in _options(p)]


def _described(param: Any) -> str:
    """A parameter that is missing, with its help."""
    if param is None:
        return "another argument"
    words = f": {param.help}" if getattr(param, "help", None) else ""
    if param.param_type_name == "argument":
        return f"{_argument(param)}{words}"
    return f"the option {' or '.join(_options(param))}{words}"


def _value(error: typer.TyperException) -> str:
    """A value of another kind than its parameter's."""
    param: Any = getattr(error, "param", None)
    message = f"{error.message[:1].lower()}{error.message[1:]}".strip().rstrip(".")
    if param is None:
        return message
    argument = param.param_type_name == "argument"
    name = _argument(param) if argument else f"option {max(_options(param), key=len)}"
    # typer raises these from pydantic's errors, which have what was given
    refused: Any = getattr(error.__cause__, "errors", list)()
    given = refused[0].get("input") if refused else None
    if not isinstance(given, (str, int, float)):
        return f"{name}: {message}"
    return f"{name} is {_quoted(str(given))}: {message}"


def _arguments(ctx: Any) -> str:
    """The arguments that a command takes, in words."""
    params = ctx.command.params if ctx is not None else ()
    names = [_argument(p) for p in params if p.param_type_name == "argument"]
    return " and ".join(names) if names else "no arguments"


def _argument(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _options(param: Any) -> list[str]:
    return [*param.opts, *param.secondary_opts]


def _nearest(word: str, known: Iterable[str]) -> str:
    found = get_close_matches(word, list(known), 1)
    return f" (the nearest is '{found[0]}')" if found else ""


def _quoted(word: str) -> str:
    return f"'{word if len(word) <= _LONGEST else word[: _LONGEST - 2] + ' …'}'"
