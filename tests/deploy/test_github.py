"""The workflow for GitHub Actions: its own steps, on a zoo of two small models, with a lock."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import pytest
import yaml

from mcfuser.lock import read_lock
from tests.support.nets import Net
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.speed import slowness

WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "github-actions.yaml").read_text())
JOB = WORKFLOW["jobs"]["batch"]
SECOND = 10.0
"""Seconds that a run may take in which nothing has changed."""
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

    def run(self, update_lock: str = "", **changed: str) -> dict[str, int]:
        """Runs the job, with the input and variables that were changed; gives the exit status of
        each step that was run."""
        self.summary.write_text("")
        known = {"github.workspace": str(self.workspace), "inputs.update_lock": update_lock}
        given = {n: filled(v, known) for n, v in JOB["env"].items()} | changed
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


def zoo() -> dict[str, onnx.ModelProto]:
    """Two models: a gated pair and a norm."""
    one, two = Net(), Net()
    x = one.input("x", 16, 32)
    gate = one.op("Sigmoid", one.op("MatMul", x, one.weight(32, 16)))
    gated = one.op("Mul", gate, one.op("MatMul", x, one.weight(32, 16)))
    x = two.input("x", 64, 64)
    norm = two.op("LayerNormalization", x, two.weight(64), two.weight(64))
    return {"gated": one.model(gated), "norm": two.model(norm)}


@pytest.mark.thorough
def test_a_job_makes_a_lock_builds_from_it_and_then_finds_everything(runner: Runner) -> None:
    (runner.workspace / "models").mkdir()
    for name, model in zoo().items():
        onnx.save(model, runner.workspace / "models" / f"{name}.onnx")
    (runner.workspace / "zoo.toml").write_text(ZOO)
    assert set(runner.run(update_lock="true").values()) == {0}
    first = runner.report()
    assert [e["state"] for e in first["entries"]] == ["passed"] * 2
    assert first["unchanged"] == 0
    assert all(e["error"] <= 1e-5 for e in first["entries"])
    assert "2 passed; 0 of 2 unchanged" in runner.summary.read_text()
    assert (runner.workspace / ".mcfuser" / "mcfuser.db").exists()
    lock = (runner.workspace / "mcfuser.lock").read_text()
    assert len(read_lock(runner.workspace / "mcfuser.lock").devices) == 1

    wide = {"MARGIN": "9999"}  # the machine is busy, and tests time little
    carried, begun = cached(runner), time.monotonic()
    assert set(runner.run(**wide).values()) == {0}
    assert time.monotonic() - begun < SECOND * slowness()
    second = runner.report()
    assert second["unchanged"] == 2 and all(e["baseline_seconds"] > 0 for e in second["entries"])
    assert "2 passed; 2 of 2 unchanged" in runner.summary.read_text()
    assert carried <= cached(runner), "nothing was written anew"
    assert "norm.onnx" in (runner.workspace / "mcfuser-report" / "report.html").read_text()

    (runner.workspace / "zoo.toml").write_text(ZOO.replace("*", "norm"))
    assert set(runner.run(LOCKED="--locked", **wide).values()) == {0}
    (built,) = runner.report()["entries"]
    searched = next(e for e in first["entries"] if e["name"] == built["name"])
    assert not built["unchanged"] and built["module"] == searched["module"]
    assert (runner.workspace / "mcfuser.lock").read_text() == lock


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
    assert not (old / "summary.md").exists() and runner.summary.read_text() == ""


def test_a_lock_that_is_there_is_used_and_one_that_is_wanted_is_written() -> None:
    script = next(s["run"] for s in JOB["steps"] if s.get("name") == "Compile and check")
    common = "batch zoo.toml --output mcfuser-report --jobs 2 --timeout 60m"
    assert said(script, lock=False) == common
    assert said(script, lock=True) == f"{common} --lock mcfuser.lock --margin 25"
    assert said(script, lock=True, LOCKED="--locked").endswith("--margin 25 --locked")
    updated = f"{common} --lock mcfuser.lock --update-lock"
    assert said(script, lock=False, UPDATE_LOCK="true") == updated
    assert said(script, lock=True, UPDATE_LOCK="true") == updated


def said(script: str, lock: bool, **changed: str) -> str:
    """The words with which the step calls the command."""
    with TemporaryDirectory() as folder:
        if lock:
            (Path(folder) / "mcfuser.lock").touch()
        environment = {"PATH": os.environ["PATH"], "MARGIN": "25", "LOCKED": ""} | changed
        ran = subprocess.run(
            ["bash", "-e", "-c", f'mcfuser() {{ echo "$@"; }}\n{script}'],
            cwd=folder, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return ran.stdout.strip()


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
