"""The packages that mcfuser declares: whether they are installed, in the versions that it needs."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from mcfuser.diagnosis import Diagnosis

OWN = "mcfuser"
SUBJECT = "packages"


def python() -> Iterator[Diagnosis]:
    """Whether mcfuser supports this Python."""
    from packaging.specifiers import SpecifierSet

    here = platform.python_version()
    try:
        wanted = str(metadata(OWN).json.get("requires_python", ""))
    except PackageNotFoundError:
        wanted = ""
    facts = {"version": here}
    if here in SpecifierSet(wanted, prereleases=True):
        yield Diagnosis("Python", "ok", f"Python {here}", facts=facts)
        return
    yield Diagnosis(
        "Python", "problem", f"this is Python {here}, and mcfuser needs {wanted}",
        "make an environment with another Python, and install mcfuser there", facts,
    )  # fmt: skip


def packages() -> Iterator[Diagnosis]:
    """Whether the packages are there that mcfuser needs."""
    try:
        declared = requires(OWN) or []
    except PackageNotFoundError:
        words = "mcfuser is not installed as a package, so what it needs is not known"
        yield Diagnosis(SUBJECT, "problem", words, "run pip install . in its folder")
        return
    yield from compared(declared)


def compared(declared: Sequence[str]) -> Iterator[Diagnosis]:
    """A problem for each of the declared requirements that is not met, or else that all are; extras
    are not looked at."""
    from packaging.requirements import Requirement

    known: dict[str, str] = {}
    unmet = False
    for words in declared:
        requirement = Requirement(words)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, wanted = requirement.name, str(requirement.specifier)
        remedy = f"run pip install '{name}{wanted}'"
        try:
            known[name] = version(name)
        except PackageNotFoundError:
            unmet = True
            yield Diagnosis(
                SUBJECT, "problem", f"{name} is not installed", remedy, {"package": name}
            )
            continue
        if not requirement.specifier.contains(known[name], prereleases=True):
            unmet = True
            words = f"{name} {known[name]} is installed, and mcfuser needs {wanted}"
            facts = {"package": name, "version": known[name], "needs": wanted}
            yield Diagnosis(SUBJECT, "problem", words, remedy, facts)
    if not unmet:
        words = f"all {len(known)} that mcfuser needs are installed, in versions that it knows"
        yield Diagnosis(SUBJECT, "ok", words, facts=known)
