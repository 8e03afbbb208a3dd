"""Options that several commands take, and chains in words or in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcfuser.cli.options import read_chain, tuning
from mcfuser.errors import InputError


def test_a_time_is_an_option_of_the_tuner_and_a_limit_of_the_command() -> None:
    given = {"seed": 3, "trials": None, "retune": True}
    assert tuning(3, None, None, True) == (given, None)
    assert tuning(3, None, "5m", True) == (given | {"timeout": 300.0}, 300.0)
    with pytest.raises(InputError, match="timeout 'soon'"):
        tuning(3, None, "soon", False)


def test_a_chain_has_a_short_form_or_a_file(tmp_path: Path) -> None:
    short = read_chain("gemm:1,64,64,32,32", "float16")
    assert {t.dtype for t in short.tensors if t.name in short.inputs} == {"float16"}
    path = tmp_path / "copy.json"
    document = {"axes": {"m": 4}, "operators": ["Y[m] = X[m]"]}
    path.write_text(json.dumps(document | {"tensors": {"X": {"shape": ["m"]}}}))
    assert read_chain(str(path), "float16").name == "copy"


FILES = {
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"axes":' * 100_000,
    "deep inside": b'{"operators": ["Y[m] = X[m]"], "axes": ' + b"[" * 900 + b"]" * 900 + b"}",
    "a deep line": json.dumps({"axes": {"m": 4}, "operators": ["Y[m] = " + "(" * 90_000]}).encode(),
    "signs": json.dumps({"axes": {"m": 4}, "operators": ["Y[m] = " + "-" * 90_000 + "1"]}).encode(),
    "no UTF-8": b'{"name": "\xff\xfe"}',
    "a long number": b'{"axes": {"m": ' + b"9" * 5000 + b"}}",
    "not a number": b'{"axes": {"m": NaN}, "operators": []}',
    "a list": b"[]",
    "nothing": b"",
    "a surrogate": b'{"name": "\\ud800", "axes": {"m": 1}, "operators": ["Y[m] = m"]}',
}


@pytest.mark.parametrize("name", FILES)
def test_a_chain_file_that_is_none_is_one_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "chain.json"
    path.write_bytes(FILES[name])
    with pytest.raises(InputError) as refused:
        read_chain(str(path), "float32")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600
