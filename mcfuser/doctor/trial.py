"""A model is compiled for the CPU at hand, in a process that may die of it.

That is the only proof that TVM, its libraries, LLVM and the linker fit together: with the wrong
version of one of them a process ends in the middle of a compilation.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcfuser.devices.catalogue import HOST
from mcfuser.diagnosis import Diagnosis, one_line
from mcfuser.errors import InputError
from mcfuser.process.confined import Limits, Stopped, run

CHILD = "mcfuser.doctor.trial_child"
SUBJECT = "compiling"
SECONDS = 120.0
"""The longest that the trial may take."""


def trial(child: str = CHILD, seconds: float = SECONDS) -> Iterator[Diagnosis]:
    """Whether a small model can be compiled, measured and run for the CPU."""
    try:
        told = run(child, {}, Limits(wall=seconds))
    except Stopped as died:
        words = one_line(str(died))
        remedy = (
            "mend the packages that are named above; if none is, install mcfuser anew, in an "
            "environment of its own"
        )
        if died.why == "time":
            remedy = "try again when the machine is less busy"
        yield Diagnosis(SUBJECT, "problem", f"a model cannot be compiled: {words}", remedy)
        return
    except InputError as error:
        yield Diagnosis(SUBJECT, "problem", f"a model cannot be compiled: {one_line(str(error))}")
        return
    words = (
        f"a small model was compiled for {HOST} ({told['arch']}, {told['units']} cores) by TVM "
        f"{told['tvm']} with LLVM {told['llvm']}, {told['seconds']:.1f} s"
    )
    if told["error"] is not None:
        agrees = f"; it agrees with onnxruntime: error {told['error']:.0e}"
        yield Diagnosis(SUBJECT, "ok", words + agrees, facts=told)
        return
    yield Diagnosis(
        SUBJECT, "warning", f"{words}; it was not compared with onnxruntime: {told['skipped']}",
        "look at onnxruntime's installation", told,
    )  # fmt: skip
