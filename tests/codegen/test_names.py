"""Generated sources are code: of a chain's names they hold nothing that is not an identifier."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mcfuser.chain import Chain, attention, from_json, gemm, identifier
from mcfuser.codegen import tensorir, triton
from mcfuser.errors import ChainError
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.schedule import Schedule
from mcfuser_db import Storage
from tests.support.kernels import tuned
from tests.support.triton_cases import scheduled

HOSTILE = (
    "coding: utf-7 +AAo-import os",  # a comment of the first two lines may declare an encoding
    "-*- coding=utf_7 -*-",
    r"coding: unicode_escape \nimport\x20os;os.abort()#",  # by which the comment ends
    "coding",
    "a'''; import os; '''",
    'a"""\\nimport os\\n"""',
    "x\\\n".strip() + "; __import__('os').system('id')",
    "é 中 \u0661",
    "../../etc/passwd",
    "{chain.name} %s $(id) `id`",
    "#" * 200 + " " + "q" * 299,
)
REFUSED = (
    "a\nimport os",
    "a\rimport os",
    "a\x0cimport os",
    "a\u2028b",
    "a\x00",
    "\ud800",
    "n" * 501,
)
SAID = re.compile(r"# [A-Za-z0-9_]{1,60} as [a-z0-9(),.]+,? .*")


def sources(chain: Chain) -> dict[str, str]:
    """One text of each generator."""
    half = replace(
        attention(12, 512, 512, 64, 64, "float16"), name=chain.name
    )  # Gluon's, for warp groups of its own
    tiles = {"m": 128, "n": 64, "k": 64, "h": 64}
    groups = TritonKnobs(stages=2, tma=True, groups=True)
    small = {"m": 16, "n": 16, "k": 16, "h": 16}
    return {
        "triton": triton.generate(scheduled(chain, "mh.nk", small), "kernel").text,
        "gluon": triton.generate(scheduled(half, "mh.nk", tiles), "kernel", groups).text,
        "tensorir": tensorir.generate(cpu(chain), "kernel", TensorirKnobs()).text,
    }


def cpu(chain: Chain) -> Schedule:
    return scheduled(chain, "mh.nk", {"m": 32, "n": 32, "k": 32, "h": 32})


@pytest.mark.parametrize("name", HOSTILE)
def test_sources_quote_an_identifier_alone(name: str) -> None:
    plain = sources(replace(gemm(1, 64, 64, 32, 32), name="plain"))
    for kind, text in sources(replace(gemm(1, 64, 64, 32, 32), name=name)).items():
        assert text.isascii() and text.isprintable() is False  # lines, and nothing else odd
        assert not re.search(r"[^\n\x20-\x7e]", text)
        first, _, rest = text.partition("\n")
        assert SAID.fullmatch(first), first
        assert first.startswith(f"# {identifier(name)} as ")
        assert not re.search(r"coding[:=]", "\n".join(text.splitlines()[:2]))
        if len(identifier(name)) < 40:  # a long one breaks the comment elsewhere
            assert rest == plain[kind].partition("\n")[2]
        assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(plain[kind]))


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_no_line_can_hold_is_refused(name: str) -> None:
    with pytest.raises(ChainError, match="one line of at most 500 printable characters"):
        replace(gemm(1, 64, 64, 32, 32), name=name)


@pytest.mark.parametrize("word", ["a; import os", "a\n", "A.b", "é", "A\u0660", "__import__('os')"])
def test_tensors_and_axes_are_identifiers(word: str) -> None:
    document = {"axes": {"m": 4}, "operators": ["Y[m] = X[m]"]}
    with pytest.raises(ChainError):
        from_json({**document, "tensors": {word: {"shape": ["m"]}, "X": {"shape": ["m"]}}})
    with pytest.raises(ChainError):
        from_json({**document, "axes": {"m": 4, word: 4}, "tensors": {"X": {"shape": ["m"]}}})


@pytest.mark.parametrize(
    "change",
    [
        {"name": 7}, {"name": None}, {"name": ["a"]}, {"outputs": [["Y"]]}, {"operators": [3]},
        {"tensors": {"X": {"shape": [2.5]}}}, {"tensors": {"X": {"shape": ["m"], "dtype": 5}}},
        {"tensors": {"X": {"shape": ["m"], "dtype": "float32; import os"}}},
        {"tensors": {"X": {"shape": ["m"], "constant": "yes"}}},
        {"tensors": {"X": {"shape": ["m"], "offset": 2**70}}},
        {"tensors": {"X": {"shape": [-1]}}},
    ],
)  # fmt: skip
def test_fields_of_another_kind_are_refused(change: dict[str, object]) -> None:
    good = {"axes": {"m": 4}, "operators": ["Y[m] = X[m]"], "tensors": {"X": {"shape": ["m"]}}}
    from_json(good)
    with pytest.raises(ChainError):
        from_json({**good, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"tiles": {"m": "64); import os #"}}, {"resources": {"shared": "__import__('os')"}},
        {"lowering": {"rows": "8\nimport os"}}, {"split": "m; import os"}, {"parts": "2"},
        {"expression": "mn(k,h)\nimport os"},
    ],
)  # fmt: skip
def test_a_stored_kernel_of_other_words_is_a_missing_one(
    change: dict[str, object], tmp_path: Path
) -> None:
    store = Storage(f"sqlite:///{tmp_path / 'k.db'}")
    store.put(tuned("good"))
    assert store.get(tuned("good").key) is not None
    bad = replace(tuned("bad"), **change)  # type: ignore[arg-type]
    store.put(bad)
    assert store.get(bad.key) is None
    store.close()


def test_a_stored_chain_s_name_reaches_no_source(tmp_path: Path) -> None:
    """A kernel is found by the chain's key, which has no name in it: the record may say any."""
    store = Storage(f"sqlite:///{tmp_path / 'k.db'}")
    named = replace(tuned(), chain=replace(tuned().chain, name=HOSTILE[0]))
    store.put(named)
    found = store.get(named.key)
    assert found is not None and found.chain.name == HOSTILE[0]
    text = tensorir.generate(cpu(found.chain), "kernel", TensorirKnobs()).text
    assert HOSTILE[0] not in text and identifier(HOSTILE[0]) in text
    store.close()


def test_an_imported_source_runs_nothing_of_a_name(tmp_path: Path) -> None:
    """Triton reads kernels from files, so a source is imported as a file is."""
    mark = tmp_path / "mark"
    words = f"import\\x20pathlib;pathlib.Path('{mark}').touch()#"
    chain = replace(gemm(1, 64, 64, 32, 32), name=rf"coding: unicode_escape \n{words}")
    (tmp_path / "kernel.py").write_text(sources(chain)["triton"])
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import kernel"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert not mark.exists()
