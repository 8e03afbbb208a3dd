"""A process whose parent has died before it could tie itself to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.support.paths import ROOT


def test_it_is_killed_before_it_begins() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    script = (
        "import sys; from mcfuser.process.lifeline import end_group_with; "
        "end_group_with(int(sys.argv[1])); print('alive')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(reading)], pass_fds=[reading], start_new_session=True,
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    os.close(reading)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")
