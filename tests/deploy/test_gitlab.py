"""The job for GitLab CI: its own script, with a command that pretends to compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import PYTHONPATH, ROOT, SUPPORT

JOB: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "gitlab-ci.yaml").read_text())["mcfuser"]


class Pipeline:
    """What a runner does of the job: its script, line by line, in the checked-out folder."""

    def __init__(self, folder: Path) -> None:
        self.project, self.commands = folder / "project", folder / "bin"
        for made in (self.project / "models", self.commands):
            made.mkdir(parents=True)
        command = self.commands / "mcfuser"
        slowly = SUPPORT / "batch_slowly.py"
        command.write_text(
            f"#!/bin/sh\nshift\nPYTHONPATH='{PYTHONPATH}:{ROOT}' exec '{sys.executable}' "
            f"'{slowly}' \"$@\"\n"
        )
        command.chmod(0o755)
        (self.project / "zoo.toml").write_text('[[models]]\nfiles = "models"\n')

    def holds(self, **models: str) -> None:
        for name, what in models.items():
            (self.project / "models" / f"{name}.onnx").write_text(what)

    def run(self, **changed: str) -> int:
        """The exit status of the job."""
        given = {n: v.replace("$CI_PROJECT_DIR", str(self.project)) for n, v in
                 JOB["variables"].items()} | changed  # fmt: skip
        path = f"{self.commands}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-e", "-c", "\n".join(JOB["script"])],
            cwd=self.project, env={**os.environ, **given, "PATH": path}, check=False,
        ).returncode  # fmt: skip

    def report(self) -> dict[str, Any]:
        return json.loads((self.project / "mcfuser-report" / "report.json").read_text())


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


@pytest.mark.thorough
def test_a_pipeline_makes_a_lock_and_later_ones_keep_to_it(pipeline: Pipeline) -> None:
    pipeline.holds(a="good", b="fine")
    assert pipeline.run() == 0 and not (pipeline.project / "mcfuser.lock").exists()
    assert pipeline.run(UPDATE_LOCK="true") == 0
    assert pipeline.report()["unchanged"] == 2
    assert pipeline.run(LOCKED="--locked") == 0
    assert pipeline.report()["entries"][0]["baseline_seconds"] == 1e-3
    pipeline.holds(a="slow")
    assert pipeline.run() == 1
    assert [e["state"] for e in pipeline.report()["entries"]] == ["slower", "passed"]


def test_a_spent_budget_is_a_warning_and_a_failure_is_none() -> None:
    assert JOB["allow_failure"] == {"exit_codes": 3}


def test_what_the_job_writes_is_what_it_caches_and_hands_over() -> None:
    assert set(JOB["cache"]["paths"]) == {".mcfuser", "mcfuser-report"}
    assert JOB["variables"]["MCFUSER_DATA"] == "$CI_PROJECT_DIR/.mcfuser"
    assert "/" not in JOB["cache"]["key"], "GitLab takes no such key"
    assert JOB["cache"]["when"] == JOB["artifacts"]["when"] == "always"
    assert JOB["artifacts"]["reports"]["junit"] == "mcfuser-report/junit.xml"
    assert any("--output mcfuser-report" in line for line in JOB["script"])


def test_both_jobs_call_the_command_alike() -> None:
    github = yaml.safe_load((ROOT / "deploy" / "github-actions.yaml").read_text())
    (step,) = (s for s in github["jobs"]["batch"]["steps"] if s.get("name") == "Compile and check")
    assert step["run"].split() == "\n".join(JOB["script"]).split()
