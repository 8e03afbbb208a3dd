"""`mcfuser doctor`: what is missing or wrong here, what would be measured, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module

import typer
from rich.text import Text

from mcfuser.cli.console import err, out, say
from mcfuser.cli.documents import print_document
from mcfuser.cli.options import JsonOption
from mcfuser.devices.catalogue import CATALOGUE, HOST
from mcfuser.diagnosis import Diagnosis, guarded
from mcfuser.table import TableColumn, lines

COMPILING, TOOLS, DEVICES = "compiling", "GPU toolchain", "GPU"
CHECKS = (
    ("Python", "mcfuser.doctor.packages", "python"),
    ("packages", "mcfuser.doctor.packages", "packages"),
    ("linker", "mcfuser.doctor.machine", "linker"),
    (COMPILING, "mcfuser.doctor.trial", "trial"),
    (TOOLS, "mcfuser.backends.cuda.examine", "toolchain"),
    (DEVICES, "mcfuser.backends.cuda.examine", "gpus"),
    ("lock folder", "mcfuser.doctor.machine", "locks"),
    ("temporary files", "mcfuser.doctor.machine", "temporary"),
    ("settings", "mcfuser.cli.storage_check", "settings"),
    ("data folder", "mcfuser.cli.storage_check", "data_folder"),
    ("database", "mcfuser.cli.storage_check", "database"),
)
"""What is examined, in the order in which it is told, and by which function of which module; that
is imported when it is needed, for its imports may be what is broken."""
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(as_json: JsonOption = False) -> None:
    """Examine this installation, and say how to mend it.

    The toolchain, devices, database and folders are looked at, and a small model is compiled, which
    takes some seconds. The status is 1 where models cannot be compiled here.
    """
    found: list[Diagnosis] = []
    for name, module, function in CHECKS:
        with err.status(f"examining: {name}") if err.is_terminal else nullcontext():
            found += guarded(name, partial(_examined, module, function))
    able = all(f.level != "problem" for f in found)
    measured, predicted = reach(found)
    if as_json:
        print_document({
            "can_compile": able, "measured": measured, "predicted": predicted,
            "findings": [f.to_json() for f in found],
        })  # fmt: skip
    else:
        _show(found, able, measured, predicted)
    if not able:
        raise typer.Exit(1)


def _examined(module: str, function: str) -> Iterable[Diagnosis]:
    check: Callable[[], Iterable[Diagnosis]] = getattr(import_module(module), function)
    return check()


def reach(found: Sequence[Diagnosis]) -> tuple[list[str], list[str]]:
    """The devices on which kernels would be measured here, and those for which the model alone
    would choose them; in the order of the catalogue."""
    sound = {f.subject for f in found if f.level != "problem"}
    built = {f.subject for f in found if f.level == "ok"}
    gpus = {name for f in found if f.subject == DEVICES for name in f.facts.get("devices", ())}
    here = [HOST] if COMPILING in sound else []
    if not here or TOOLS not in built:
        return here, []
    return [*here, *(n for n in CATALOGUE if n in gpus)], [n for n in CATALOGUE if n not in gpus]


def _show(
    found: Sequence[Diagnosis], able: bool, measured: Sequence[str], predicted: Sequence[str]
) -> None:
    rows = [
        (f.level, f.subject, f.sentence + (f"\nto mend it: {f.remedy}" if f.remedy else ""))
        for f in found
    ]
    columns = (TableColumn("finding"), TableColumn("of"), TableColumn("", "words"))
    for line in lines(columns, rows, out.width if out.is_terminal else None)[1:]:
        text = Text(line)
        level = line.split(" ", 1)[0]
        if level in _COLOURS:
            text.stylize(_COLOURS[level], 0, len(level))
        out.print(text, soft_wrap=True)
    out.print()
    if not able:
        out.print("models cannot be compiled here: mend the problems above", highlight=False)
        return
    _say(f"models can be compiled here; kernels are measured for: {', '.join(measured)}")
    if predicted:
        _say(f"predicted, not measured, for: {', '.join(predicted)}")


def _say(words: str) -> None:
    say(words)
