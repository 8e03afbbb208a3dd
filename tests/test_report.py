"""What is printed of a compilation's report."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from mcfuser.report import show

REPORT: dict[str, Any] = {
    "device": "cpu", "arch": "zen3", "times": "measured", "chains": [], "products": [],
    "seconds": {"tuning": 1.0, "building": 2.0}, "check": {"skipped": "not asked for"},
}  # fmt: skip


def function(name: str, seconds: float, tuned: bool) -> dict[str, Any]:
    return {"name": name, "seconds": seconds, "calls": 2.0, "tuned": tuned}


def printed(functions: list[dict[str, Any]] | None, **more: Any) -> list[str]:
    told = io.StringIO()
    report = {**REPORT, "functions": functions, **more}
    show(report, Console(file=told, width=80, soft_wrap=True))
    return told.getvalue().splitlines()


def test_what_is_not_tuned_and_takes_long_is_named() -> None:
    lines = printed([
        function("chain_gemm_0", 900e-6, True), function("softmax", 70e-6, False),
        function("fused_add", 30e-6, False), function("take", 29e-6, False),
    ])  # fmt: skip
    assert "87% of the 1.029 ms of a run's functions is in tuned kernels" in lines
    assert [line.split() for line in lines if " us " in line] == [
        ["softmax", "70.0", "us", "7%", "2"]
    ]


@pytest.mark.parametrize("functions", [None, []])
def test_nothing_is_said_of_a_module_that_was_not_run(
    functions: list[dict[str, Any]] | None,
) -> None:
    assert not any("tuned kernels" in line for line in printed(functions))


def test_it_is_said_where_an_output_has_no_number_to_compare() -> None:
    found = {"error": 0.0, "outputs": {"y": 0.0, "z": 0.0}, "numberless": ["z"]}
    lines = printed(None, check=found)
    at = lines.index("agrees with onnxruntime on random inputs: error 0.0e+00")
    assert lines[at + 1].startswith(
        "  'z' has no number on these inputs, nor has it in onnxruntime"
    )
    assert not any(
        "has no number" in line for line in printed(None, check=found | {"numberless": []})
    )
