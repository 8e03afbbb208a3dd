"""Whether kernels for NVIDIA GPUs can be built here, and on which GPUs they can be measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mcfuser.backends.cuda.backend import CUDA
from mcfuser.backends.versions import ABSENT
from mcfuser.codegen.cuda.build import found_in, places
from mcfuser.diagnosis import Diagnosis, Severity, one_line
from mcfuser.errors import InputError
from mcfuser.process.confined import Limits, Stopped, run

SURVEY = "mcfuser.backends.cuda.survey"
SECONDS = 60.0
"""The longest that the search for GPUs may take."""
TOOLS, DEVICES = "GPU toolchain", "GPU"
EXTRA = "run pip install 'mcfuser[gpu]'"


def toolchain() -> Iterator[Diagnosis]:
    """What kernels for GPUs and the modules around them are built with."""
    versions = dict(CUDA.toolchain())
    for name, version in versions.items():
        if version == ABSENT:
            yield Diagnosis(
                TOOLS, "warning", f"{name} is missing, so no kernel for a GPU can be built",
                "run pip install --force-reinstall triton", versions,
            )  # fmt: skip
            return
    words = f"kernels for GPUs are built by Triton {versions['triton']}, ptxas {versions['ptxas']}"
    try:
        kit = found_in(places())
    except ModuleNotFoundError:  # mcfuser was installed without its extra `gpu`
        lacking = "NVIDIA's packages are not installed"
        yield Diagnosis(TOOLS, "warning", f"{words}, but no modules: {lacking}", EXTRA, versions)
        return
    except FileNotFoundError as error:
        lacking, _, _ = str(error).rpartition(";")
        yield Diagnosis(
            TOOLS, "warning", f"{words}, but no modules for GPUs: {one_line(lacking)}", EXTRA,
            versions,
        )  # fmt: skip
        return
    facts = {**versions, "headers": str(kit.root / "include"), "runtime": str(kit.runtime)}
    yield Diagnosis(TOOLS, "ok", f"{words}, modules with the headers in {kit.root}", facts=facts)


def gpus(survey: str = SURVEY) -> Iterator[Diagnosis]:
    """The GPUs at hand. The fact `devices` has the names of those on which kernels are measured."""
    nothing: dict[str, Any] = {"devices": []}
    missing = CUDA.missing()
    if missing is not None:
        sentence, _, remedy = missing.partition("; ")
        level: Severity = "warning" if remedy else "ok"  # a machine without a GPU needs no mending
        yield Diagnosis(DEVICES, level, sentence, remedy, nothing)
        return
    try:
        told = run(survey, {}, Limits(wall=SECONDS))
    except (Stopped, InputError) as error:
        yield Diagnosis(
            DEVICES, "warning", f"the search for GPUs failed: {one_line(str(error))}",
            "look at the driver with nvidia-smi; install it anew if that fails as well", nothing,
        )  # fmt: skip
        return
    yield surveyed(told)


def surveyed(told: dict[str, Any]) -> Diagnosis:
    """What a survey (mcfuser.backends.cuda.survey) means for the user."""
    known = [g["device"] for g in told["gpus"] if g["device"] is not None]
    facts = {**told, "devices": sorted(set(known))}
    if told["unusable"] is not None or not told["gpus"]:
        why = told["unusable"] or "the driver knows of none"
        remedy = "look whether nvidia-smi lists one, and update the driver if it fails"
        return Diagnosis(DEVICES, "warning", f"no GPU can be used: {why}", remedy, facts)
    names = ", ".join(sorted({f"{g['name']} ({g['arch']})" for g in told["gpus"]}))
    words = f"{names}; driver {told['driver'] or 'of unknown version'}, CUDA {told['cuda']}"
    if not known:
        remedy = "docs/architecture.md says how a device is added"
        return Diagnosis(
            DEVICES, "warning", f"{words}; the catalogue has none of them", remedy, facts
        )
    return Diagnosis(DEVICES, "ok", words, facts=facts)
