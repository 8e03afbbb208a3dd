"""The command with few rounds of timing: `python -m tests.support.hasty_command run ..`."""

from __future__ import annotations

import sys

from mcfuser.cli.command import main as command
from mcfuser_service import compilation


def main() -> None:
    compilation._MODULE = "tests.support.hasty_compile"
    if sys.argv[1] in ("run", "tune"):
        from tests.support.hasty import hasten

        hasten()
    elif sys.argv[1] == "batch":
        from mcfuser.batch import entry

        entry.MODULE = __spec__.name
    command()


if __name__ == "__main__":
    main()
