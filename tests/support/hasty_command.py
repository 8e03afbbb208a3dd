"""The command with few rounds of timing: `python -m tests.support.hasty_command run ..`."""

from __future__ import annotations

import sys

from mcfuser.cli.command import main as command
from mcfuser.process import supervised
from mcfuser_service import compilation
from tests.support import forked_birth


def main() -> None:
    compilation._MODULE = "tests.support.hasty_compile"
    if "tvm" in sys.modules:  # this process is a fork that has it
        forked_birth.install()
    if sys.argv[1] in ("run", "tune"):
        from tests.support.hasty import hasten

        hasten()
    elif sys.argv[1] == "batch":
        from mcfuser.batch import entry

        entry.MODULE = __spec__.name
        setattr(supervised, "Popen", forked_birth.ForkedPopen)  # noqa: B010
    command()


if __name__ == "__main__":
    main()
