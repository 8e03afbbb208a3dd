"""What a fork does that runs the command (tests.support.command): it begins with what the command's
own imports load, TVM above all, already loaded.

onnxruntime is not: its import starts a thread, which a fork would lack.
"""

from __future__ import annotations

import os
import sys
import traceback

import onnx  # noqa: F401
import tvm.relax.frontend.onnx  # noqa: F401

import mcfuser.tune.tuner  # noqa: F401
import mcfuser_db  # noqa: F401
import mcfuser_service.compile_child  # noqa: F401
import tests.support.late_imports  # noqa: F401
from tests.support import hasty_command
from tests.support.command import CommandRequest


def answer(request: CommandRequest) -> int:
    """Runs the command as a process of its own would; the answer is its exit status."""
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    for path, stream in ((request.output, 1), (request.errors, 2)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), stream)
    sys.argv = ["mcfuser", *request.words]
    try:
        hasty_command.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
