"""A zoo of pretended models, and batches of it in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from typer.testing import CliRunner

from mcfuser.cli.command import app
from mcfuser.errors import InputError
from tests.support.batch_slowly import pretended
from tests.support.paths import SUPPORT

SLOWLY = SUPPORT / "batch_slowly.py"


class Zoo:
    """A folder with a zoo of pretended models, by name what they are."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "report"

    def holds(self, more: str = "", **models: str) -> None:
        for name, what in models.items():
            (self.folder / f"{name}.onnx").write_text(what)
        files = json.dumps([f"{name}.onnx" for name in models])
        (self.folder / "zoo.toml").write_text(f"[[models]]\nfiles = {files}\n{more}\n")

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(SLOWLY), str(self.folder / "zoo.toml"), "-o", str(self.output),
             *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def batch(self, *words: str) -> tuple[int, str, str]:
        """The exit status, what was printed, and what was said to be wrong; in this process."""
        given = ["batch", str(self.folder / "zoo.toml"), "-o", str(self.output), *words]
        with pretended():
            ran = CliRunner().invoke(app, given)
        if isinstance(ran.exception, InputError):
            return 2, ran.stdout, str(ran.exception)
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return ran.exit_code, ran.stdout, ran.stderr

    @property
    def report(self) -> dict[str, object]:
        return json.loads((self.output / "report.json").read_text())

    def states(self) -> dict[str, str]:
        """Each entry's model and state."""
        return {e["name"].removesuffix(".onnx"): e["state"] for e in self.report["entries"]}

    def begun(self) -> list[str]:
        """The models that were compiled so far, in that order."""
        return [line.split(".")[0] for line in self._noted()]

    def processes(self) -> list[int]:
        return [int(line.split()[1]) for line in self._noted()]

    def _noted(self) -> Sequence[str]:
        noted = self.folder / "begun"
        return noted.read_text().splitlines() if noted.exists() else []

    def wait_until_begun(self, name: str) -> None:
        while name not in self.begun():
            time.sleep(0.05)
