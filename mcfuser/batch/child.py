"""The `mcfuser` command in a process that ends with the batch that started it.

    python -m mcfuser.batch.child 4711 compile model.onnx -o out

4711 is the process that must live on; where it dies, even of kill -9, so does this one.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv.pop(1))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call above
        sys.exit(1)
    runpy.run_module("mcfuser.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
