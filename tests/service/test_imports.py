"""An import over HTTP is one at a time, and ends where its client goes away."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mcfuser_service import imports
from mcfuser_service.importing import Imported, ImportedLine
from mcfuser_service.imports import Imports
from mcfuser_service.problems import ProblemError
from mcfuser_service.settings import ServiceSettings


def test_there_is_one_turn(tmp_path: Path) -> None:
    every = Imports(ServiceSettings(data=tmp_path))
    with every.turn():
        with pytest.raises(ProblemError, match="is being imported") as refused, every.turn():
            pass
        assert refused.value.details["status"] == 429 and "Retry-After" in refused.value.headers
    with every.turn():
        pass


def test_it_ends_where_its_lines_are_read_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def endless(*given: Any, tell: Any, check: Any, niceness: int) -> Imported:
        tell(ImportedLine(2, "kept", ""))
        try:
            while True:
                check()
                time.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(imports, "import_kernels", endless)
    every, held = Imports(ServiceSettings(data=tmp_path)), ExitStack()
    held.enter_context(every.turn())

    async def first() -> str:
        lines = every.begin(tmp_path / "x", 1.0, held)
        try:
            return await anext(lines)
        finally:
            await lines.aclose()

    assert '"line": 2' in asyncio.run(first())
    assert ended.wait(10)
    with every.turn():  # it was given back before the event loop could end
        pass
