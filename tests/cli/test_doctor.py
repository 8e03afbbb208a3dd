"""`mcfuser doctor`: on this machine, and on installations that are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcfuser.cli import doctor
from mcfuser.cli.command import app
from mcfuser.cli.doctor import reach
from mcfuser.cli.terminal import ended
from mcfuser.diagnosis import Diagnosis
from tests.support.paths import ROOT

LEVELS = ("ok", "warning", "problem")


def examined(folder: Path, *broken: str) -> tuple[int, dict[str, Any], str]:
    """The status, the document and the errors of the command, where some modules raise an
    ImportError."""
    for name in broken:
        (folder / name).mkdir(parents=True)
        words = f"raise ImportError('lib{name}.so: cannot open shared object file')\n"
        (folder / name / "__init__.py").write_text(words)
    paths = [str(folder), str(ROOT), str(ROOT / "db"), str(ROOT / "service")]
    done = subprocess.run(
        [sys.executable, "-m", "mcfuser.cli", "doctor", "--json"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": ":".join(paths), "MCFUSER_DATA": str(folder / "data")},
        check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout), done.stderr


def levels(document: dict[str, Any]) -> dict[str, str]:
    """The worst level of each subject."""
    found: dict[str, str] = {}
    for one in document["findings"]:
        worst = max(one["level"], found.get(one["subject"], "ok"), key=LEVELS.index)
        found[one["subject"]] = worst
    return found


def test_models_can_be_compiled_here(tmp_path: Path) -> None:
    status, document, told = examined(tmp_path)
    assert (status, told) == (0, ""), document
    assert document["can_compile"] and document["measured"][0] == "cpu"
    assert set(levels(document)) >= {name for name, _, _ in doctor.CHECKS}
    (compiling,) = (f for f in document["findings"] if f["subject"] == "compiling")
    assert compiling["level"] == "ok" and compiling["facts"]["times"] == "measured"
    assert compiling["facts"]["error"] <= 1e-4
    assert not (tmp_path / "data").exists()


def test_an_installation_whose_compiler_does_not_load_is_told(tmp_path: Path) -> None:
    status, document, told = examined(tmp_path, "tvm")
    assert (status, told) == (1, "") and not document["can_compile"]
    assert (document["measured"], document["predicted"]) == ([], [])
    (compiling,) = (f for f in document["findings"] if f["subject"] == "compiling")
    assert compiling["level"] == "problem" and compiling["remedy"]
    assert "ImportError: libtvm.so: cannot open shared object file" in compiling["sentence"]
    assert levels(document)["database"] == "ok"


def test_an_installation_of_which_little_works_is_told(tmp_path: Path) -> None:
    status, document, told = examined(tmp_path, "numpy", "sqlalchemy", "pydantic_settings")
    assert (status, told) == (1, "")
    worst = levels(document)
    for subject in ("compiling", "GPU", "settings", "data folder", "database"):
        assert worst[subject] == "problem", document
    assert worst["Python"] == worst["linker"] == "ok"
    assert all(f["remedy"] for f in document["findings"] if f["level"] == "problem")


def pretended(monkeypatch: pytest.MonkeyPatch, *found: Diagnosis) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (("all", "none", "none"),))
    monkeypatch.setattr(doctor, "_examined", lambda module, function: found)


GOOD = Diagnosis("compiling", "ok", "a small model was compiled")
BAD = Diagnosis("database", "problem", "it is damaged", "move it away")


def test_findings_are_lines_with_what_mends_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretended(monkeypatch, GOOD, BAD)
    assert ended(app, ("doctor",)) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok       compiling  a small model was compiled",
        "problem  database   it is damaged",
        "                    to mend it: move it away",
        "",
        "models cannot be compiled here: mend the problems above",
    ]
    pretended(monkeypatch, GOOD)
    assert ended(app, ("doctor",)) == 0
    assert capsys.readouterr().out.endswith(
        "models can be compiled here; kernels are measured for: cpu\n"
    )


def test_kernels_are_measured_where_the_device_is_and_predicted_elsewhere() -> None:
    tools = Diagnosis("GPU toolchain", "ok", "Triton")
    gpu = Diagnosis("GPU", "ok", "H200", facts={"devices": ["nvidia/h200"]})
    measured, predicted = reach([GOOD, tools, gpu])
    assert measured == ["cpu", "nvidia/h200"]
    assert "nvidia/a100" in predicted and "nvidia/h200" not in predicted
    assert reach([GOOD, gpu]) == (["cpu"], []), "without a toolchain there is nothing for a GPU"
    assert reach([Diagnosis("compiling", "problem", "no"), tools, gpu]) == ([], [])
