"""The `mcfuser` command in a process that ends with the batch that started it.

    python -m mcfuser.batch.child 4711 compile model.onnx -o out

4711 is the process that must live on; where it dies, even of kill -9, so does this one.
"""

from __future__ import annotations

import os
import runpy
import sys

from mcfuser.process.confinement import end_with_parent


def main() -> None:
    parent = int(sys.argv.pop(1))
    end_with_parent()
    if os.getppid() != parent:  # it died before the call above
        sys.exit(1)
    runpy.run_module("mcfuser.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
