"""The workflow for GitHub Actions: its own steps, run twice on a zoo of two small models."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import PYTHONPATH, ROOT

WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "github-actions.yaml").read_text())
JOB = WORKFLOW["jobs"]["batch"]
FIXTURES = ROOT / "tests" / "fixtures"
MODELS = ("softmax_over_rows", "no_product")
ZOO = """
[defaults]
trials = 1
timeout = "1h"
[[models]]
files = "models/*.onnx"
"""


class Runner:
    """What a runner does of a job: its `run` steps, in bash, in the checked-out folder."""

    def __init__(self, folder: Path) -> None:
        self.workspace, self.summary = folder / "workspace", folder / "summary"
        self.workspace.mkdir()
        self.commands = folder / "bin"
        self.commands.mkdir()

    def run(self) -> dict[str, int]:
        """Runs the job; gives the exit status of each step that was run."""
        self.summary.write_text("")
        known = {"github.workspace": str(self.workspace)}
        given = {n: filled(v, known) for n, v in JOB["env"].items()}
        environment = {
            **os.environ, **given, "GITHUB_STEP_SUMMARY": str(self.summary), "CI": "true",
            "PATH": f"{self.commands}:{os.environ['PATH']}",
        }  # fmt: skip
        statuses: dict[str, int] = {}
        for step in JOB["steps"]:
            if "run" not in step or (any(statuses.values()) and step.get("if") != "always()"):
                continue
            words = self.install() if step["name"] == "Install mcfuser" else step["run"]
            done = subprocess.run(
                ["bash", "-e", "-c", filled(words, known)],
                cwd=self.workspace, env=environment, stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            statuses[step["name"]] = done.returncode
        return statuses

    def install(self) -> str:
        """In place of an installation: the command of this checkout."""
        script = (
            f"#!/bin/sh\nPYTHONPATH='{PYTHONPATH}' exec '{sys.executable}' "
            '-m tests.support.hasty_command "$@"\n'
        )
        (self.commands / "mcfuser").write_text(script)
        return f"chmod +x '{self.commands}/mcfuser'"

    def report(self) -> dict[str, Any]:
        return json.loads((self.workspace / "mcfuser-report" / "report.json").read_text())


def filled(words: str, known: dict[str, str]) -> str:
    """GitHub's expressions replaced; one that is not known here is a KeyError."""
    return re.sub(r"\$\{\{\s*([\w.]+)\s*\}\}", lambda found: known[found[1]], words)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    yield Runner(tmp_path)


def test_the_second_run_finds_everything_in_the_cache(runner: Runner) -> None:
    (runner.workspace / "models").mkdir()
    for name in MODELS:
        shutil.copy(FIXTURES / f"{name}.onnx", runner.workspace / "models")
    (runner.workspace / "zoo.toml").write_text(ZOO)
    assert set(runner.run().values()) == {0}
    first = runner.report()
    assert [e["state"] for e in first["entries"]] == ["passed"] * 2
    assert first["unchanged"] == 0
    assert all(e["error"] <= 1e-5 for e in first["entries"])
    assert "2 passed; 0 of 2 unchanged" in runner.summary.read_text()
    assert (runner.workspace / ".mcfuser" / "mcfuser.db").exists()
    carried = cached(runner)
    assert set(runner.run().values()) == {0}
    second = runner.report()
    assert second["unchanged"] == 2
    assert [e["module"] for e in second["entries"]] == [e["module"] for e in first["entries"]]
    assert "2 passed; 2 of 2 unchanged" in runner.summary.read_text()
    assert carried <= cached(runner), "nothing was written anew"


def cached(runner: Runner) -> set[tuple[str, int]]:
    """The files of all entries and when each was written."""
    found = (runner.workspace / "mcfuser-report" / "entries").rglob("*")
    return {(str(p), p.stat().st_mtime_ns) for p in found}


def test_a_bad_zoo_fails_the_job_and_leaves_no_old_summary(runner: Runner) -> None:
    old = runner.workspace / "mcfuser-report"
    old.mkdir()
    (old / "summary.md").write_text("of an earlier run")
    (runner.workspace / "zoo.toml").write_text("[[models]]\nfiles = 'none.onnx'")
    assert runner.run() == {"Install mcfuser": 0, "Compile and check": 2, "Summarise": 0}
    assert runner.summary.read_text() == ""


def test_what_the_job_writes_is_what_it_caches() -> None:
    steps = {step["name"]: step for step in JOB["steps"] if "name" in step}
    restored, kept = steps["Restore what earlier runs have kept"], steps["Keep for later runs"]
    for key in ("path", "key"):
        assert restored["with"][key] == kept["with"][key]
    assert restored["with"]["key"].startswith(restored["with"]["restore-keys"])
    assert set(kept["with"]["path"].split()) == {".mcfuser", "mcfuser-report"}
    assert JOB["env"]["MCFUSER_DATA"].endswith("/.mcfuser")
    assert "--output mcfuser-report" in steps["Compile and check"]["run"]
    assert all(steps[n]["if"] == "always()" for n in ("Summarise", "Keep for later runs"))
