"""What a compilation imports or measures only once it needs it: processes that are cloned for
compilations have it from the start."""

from __future__ import annotations

import numpy.random  # noqa: F401
import sympy.physics.units  # noqa: F401
import tvm.relax.script
import tvm.script.tirx  # noqa: F401

from mcfuser.devices.cpu import probe_cpu

probe_cpu()  # which measures the CPU once in a process, and its clones
