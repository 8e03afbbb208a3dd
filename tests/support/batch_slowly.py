"""`mcfuser batch` with a pretended compiler: `python batch_slowly.py ZOO -o FOLDER ..`."""

from __future__ import annotations

import sys

from mcfuser.batch import entry, run, state
from mcfuser.cli.command import main

if __name__ == "__main__":
    entry.MODULE = "tests.support.batch_pretended"
    run._target = lambda name: run.Target(name, None if name == "cpu" else "no GPU is at hand")
    state.revision = lambda: "1"  # the same for a second run, even while the source is edited
    sys.argv.insert(1, "batch")
    main()
