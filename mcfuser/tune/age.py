"""How old a kept kernel is, by what it was made with and what is here.

A kernel of another chain, device, space or code generator, or of a compiler whose work is not in
the record, is outdated: it is never used. One that differs only in what the making of a kernel from
its record does not depend on (`Backend.soft`, and the driver under which it was timed) is stale: it
is used, and measured again when there is time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from mcfuser.tune.key import CacheKey, differs

Age = Literal["current", "stale", "outdated"]

_PROGRAM = "toolchain."


def age(kept: CacheKey, here: CacheKey, soft: Mapping[str, int]) -> Age:
    """The age of a kernel that is `kept`, where a kernel with the key `here` would be made now.

    `soft` names the programs of the toolchain that may differ, each with the number of parts of its
    version that must be equal all the same.
    """
    fields = differs(kept, here)
    if not fields:
        return "current"
    return "stale" if all(_is_soft(f, kept, here, soft) for f in fields) else "outdated"


def _is_soft(field: str, kept: CacheKey, here: CacheKey, soft: Mapping[str, int]) -> bool:
    name = field.removeprefix(_PROGRAM)
    if name == field or name not in soft:
        return False
    old, new = _version(kept, name).split("."), _version(here, name).split(".")
    return old[: soft[name]] == new[: soft[name]]


def _version(key: CacheKey, program: str) -> str:
    return dict(key.toolchain).get(program, "")


def reasons(kept: CacheKey, here: CacheKey) -> tuple[str, ...]:
    """Each field in which a kept kernel's key differs from the one that is wanted here, in a
    clause. Of a kernel for another device only that is said: another kind has other programs."""
    every = tuple(_reasons(kept, here))
    return every if kept.device == here.device else every[:1]


def _reasons(kept: CacheKey, here: CacheKey) -> Iterator[str]:
    for field in sorted(differs(kept, here), key=lambda name: name != "device"):
        if field.startswith(_PROGRAM):
            yield _made_with(field.removeprefix(_PROGRAM), kept, here)
        elif field == "toolchain":
            yield "the order of the toolchain's programs has changed"
        elif field == "chain":
            yield "it computes another chain"
        elif field == "device":
            yield f"it was tuned for another device, {kept.device}, and this is {here.device}"
        elif field == "space":
            yield f"it was searched in the space '{kept.space}', and '{here.space}' is asked for"
        elif field == "shifts":
            yield f"its space has {'' if kept.shifts else 'no '}hoisted shifts, unlike this one"
        elif field == "knobs":
            yield "the knobs that candidates have were declared differently"
        elif field == "sources":
            yield "the code generator's sources have changed"
        else:
            raise AssertionError(f"the cache key has a field '{field}' that nobody describes")


def _made_with(program: str, kept: CacheKey, here: CacheKey) -> str:
    old, new = _version(kept, program), _version(here, program)
    if not old or old == "absent":
        return f"it was made without {program}, here is {new}"
    if not new or new == "absent":
        return f"it was made with {program} {old}, which is not installed here"
    return f"it was made with {program} {old}, here is {new}"


def driver_changed(kept: object, here: str) -> str:
    """Why a kernel that was timed under the driver `kept` is stale `here`, in a clause; empty where
    it is not, or one of the versions is not known."""
    if not here or not isinstance(kept, str) or kept == here:
        return ""
    return f"it was timed under driver {kept}, here is {here}"
