"""Labels of packages: what is missing is said, and what disagrees is in the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import labels
from labels_packages import ROWS, Module, _Slices


def test_what_is_missing_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(labels, "NEEDS", {"silero-vad": ("no_such_module", "numpy", "none_too")})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["labels.py", "-o", str(tmp_path / "labels.json")])
    with pytest.raises(SystemExit) as ended:
        labels.main()
    assert ended.value.code == 0 and not (tmp_path / "labels.json").exists()
    said = "not compared: install no-such-module, none-too with pip and the program espeak-ng"
    assert f"silero-vad: {said}" in capsys.readouterr().out.splitlines()


def test_labels_that_differ_are_counted() -> None:
    found = {
        "name": "m", "shapes": {"x": "1x8", "y": "2"}, "inputs": "3 files", "labels": 3, "agree": 2,
        "difference": 0.25,
    }  # fmt: skip
    lines = labels.table([found], {})
    assert lines[-1] == "| m | x 1x8, y 2 | 3 files | 2 of 3 | 2.5e-01 |"


def test_a_module_takes_the_place_of_a_session() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17]>
        g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) { y = Tanh(x)  z = Abs(x) }
    """)
    module = Module(proto.SerializeToString(), {"x": (ROWS, 4)}, 1.0)
    rows = np.random.default_rng(0).standard_normal((2 * ROWS.high + 3, 4)).astype(np.float32)
    (found,) = _Slices(module).run(["z"], {"x": rows.tolist()})
    np.testing.assert_array_equal(found, np.abs(rows))
    first, second = module.run(None, {"x": rows[:2], "another": 0})
    np.testing.assert_allclose(first, np.tanh(rows[:2]), rtol=1e-5)
    np.testing.assert_array_equal(second, np.abs(rows[:2]))
