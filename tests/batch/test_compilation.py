"""Reports as the page of a batch reads them: those of another form are not shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcfuser.batch.compilation import read_compilation

CHAIN = {"name": "c", "fused": True, "places": ["p", "q"]}
KERNEL = {"expression": "mn", "tiles": {"m": 1}}


def test_a_measured_time_outweighs_a_predicted_one(tmp_path: Path) -> None:
    kernels = [
        {**KERNEL, "measured_seconds": 2.0, "predicted_seconds": 9.0},
        {**KERNEL, "measured_seconds": None, "predicted_seconds": 1.0},
    ]
    (tmp_path / "report.json").write_text(json.dumps({"chains": [{**CHAIN, "kernels": kernels}]}))
    found = read_compilation(tmp_path)
    assert found is not None and [k.seconds for k in found.chains[0].kernels] == [2.0, 1.0]


@pytest.mark.parametrize(
    "words",
    ["", "{", "[]", "[" * 100_000, '{"chains": 3}', '{"chains": [{"name": "c"}]}',
     json.dumps({"chains": [{**CHAIN, "kernels": [{**KERNEL, "measured_seconds": -1}]}]}),
     json.dumps({"chains": [{**CHAIN, "kernels": [{**KERNEL, "measured_seconds": "x"}]}]}),
     '{"chains": [{"name": "c", "fused": true, "kernels": [{"expression": "m", "tiles": {},'
     ' "measured_seconds": NaN}]}]}'],
)  # fmt: skip
def test_a_report_of_another_form_is_not_shown(words: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(words)
    assert read_compilation(tmp_path) is None


def test_no_report_is_none(tmp_path: Path) -> None:
    assert read_compilation(tmp_path) is None
