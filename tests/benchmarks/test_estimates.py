"""The script that judges the estimates: what it prints, and its one sentence where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from estimates import app
from mcfuser.cli.terminal import ended
from tests.support.paths import LANDSCAPES, ROOT


def estimates(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "estimates.py"), *words],
        capture_output=True, text=True, check=False, cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def test_models_are_judged_on_every_landscape_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "h200").mkdir()
    for name in ("G1", "S4"):
        shutil.copy(LANDSCAPES / f"{name}.json", tmp_path / "h200")
    ran = estimates("model", "--data", str(tmp_path), "--constants", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    for name in ("G1", "S4"):
        for model in ("equation (2)", "roofline", "fitted to the others"):
            assert any(name in r and model in r for r in ran.stdout.splitlines())
    assert '("launch", ' in ran.stdout


@pytest.mark.thorough
def test_estimates_are_compared_with_what_is_allocated(tmp_path: Path) -> None:
    ran = estimates("shared-memory", "--workload", "G1", "--limit", "1", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "equation (1)" in ran.stdout and "nvidia/h200, float16: " in ran.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("model", "--device", "cpu"), "device 'cpu' is no GPU"),
        (("model", "--data", "nowhere"), "holds no landscapes"),
        (("shared-memory", "--workload", "G99"), "workload 'G99' is not known"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(app, words) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and told in errors
