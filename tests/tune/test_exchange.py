"""Tuning records as lines: what is written is read, and nothing else is."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import from_text, to_json
from mcfuser.tune import exchange
from mcfuser.tune.exchange import (
    LONGEST_LINE,
    RecordError,
    check_header,
    header,
    line_of,
    lines_of,
    read_line,
)
from mcfuser.tune.rebuild import record_of
from tests.support.kernels import tuned
from tests.support.records import line, searched


def test_a_record_is_read_as_it_was_written_and_holds_no_source_or_binary() -> None:
    one = searched()
    text = line(one)
    assert read_line(text.encode()) == record_of(one)
    assert not {"source", "binary", "launch"} & set(json.loads(text))


def test_a_kernel_without_a_cache_key_has_no_line() -> None:
    assert line_of({**searched().to_json(), "made": None}) is None


def spread(extent: int, stride: int) -> dict[str, Any]:
    """A sum of so many elements that lie so far apart."""
    tensors = {"X": {"shape": ["m", "n"], "strides": [1, stride]}}
    return {"axes": {"m": 2, "n": extent}, "tensors": tensors,
            "operators": ["Y[m] = sum[n] X[m, n]"]}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tiles": {"m": 0}}, r"its tiles\[m\] is not what a kernel has there"),
        ({"tiles": {"z": 16}}, "not of the documented form"),
        ({"expression": "import os"}, "its expression is not what"),
        ({"expression": "mh.nkz"}, "not of the documented form"),
        ({"lowering": {"rows": "__import__('os')"}}, r"its lowering\[rows\]"),
        ({"split": "m; x"}, "its split is not what"),
        ({"parts": True}, "its parts is not what"),
        ({"device": "../../etc"}, "is not known"),
        ({"device": ["cpu"]}, "is not known"),
        ({"space": "any"}, "its space is not known"),
        ({"shifts": 1}, "its shifts are neither"),
        ({"measured": -1.0}, "its measured time is none"),
        ({"measured": float("nan")}, "its measured time is none"),
        ({"measured": float("inf")}, "its measured time is none"),
        ({"trials": -1}, "its number of trials is none"),
        ({"budget": {"trials": None, "seconds": 1e400, "ended": "settled"}}, "time is none"),
        ({"budget": {"trials": 1, "seconds": 1.0, "ended": "never"}}, "is not known"),
        ({"budget": []}, "not of the documented form"),
        ({"made": {}}, "not of the documented form"),
        ({"chain": "gemm:1,64,64,32,32"}, "not of the documented form"),
        ({"chain": to_json(from_text("gemm:1,64,64,32,32"))}, "its cache key is another chain's"),
        ({"chain": to_json(from_text("gemm:64,100000,100000,64,64"))}, "more than 4 GiB"),
        ({"chain": spread(2, 1 << 33)}, "more than 4 GiB"),
        ({"chain": spread(1 << 30, 0)}, "more than 4 GiB"),
        ({"source": "import os"}, "is no object with the fields"),
    ],
)
def test_a_record_that_was_tampered_with_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(RecordError, match=words) as caught:
        read_line(line(searched(), **changed).encode())
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text", [b"", b"[" * 100_000, b"{}", b"null", b'{"chain": 1}', b"9" * 5000, b"\xff\xfe"]
)
def test_a_line_that_is_no_record_is_refused(text: bytes) -> None:
    with pytest.raises(RecordError):
        read_line(text)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_damage_to_a_line_is_another_error(data: st.DataObject) -> None:
    text = bytearray(line(searched()).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        read_line(bytes(text))
    except RecordError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"", "no file of kernels"),
        (b"\x80\x04pickle", "no file of kernels"),
        (b"[]", "no file of kernels"),
        (b"[" * 99_999, "no file of kernels"),
        (b'{"format": "mcfuser-kernels", "version": 2}', "version 2 of the format, and 1"),
        (b'{"format": "mcfuser-kernels"}', "version None of the format"),
    ],
)
def test_a_file_of_another_format_is_refused(first: bytes, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        check_header(first)
    with pytest.raises(RecordError, match=words):
        list(lines_of(io.BytesIO(first)))


def test_lines_are_numbered_and_a_long_one_does_not_hide_the_next() -> None:
    long = b"x" * (3 * LONGEST_LINE)
    file = io.BytesIO(b"\n".join([header().encode(), b"one", b"", long, b"two"]))
    read = list(lines_of(file))
    assert [n for n, _ in read] == [2, 4, 5] and read[0][1] == b"one\n" and read[2][1] == b"two"
    with pytest.raises(RecordError, match="more than"):
        read_line(read[1][1])


def test_a_file_of_too_many_lines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MOST_LINES", 3)
    file = io.BytesIO(b"\n".join([header().encode(), *[b"line"] * 3]))
    with pytest.raises(RecordError, match="more than 3 lines"):
        list(lines_of(file))


def test_any_kept_kernel_can_be_written() -> None:
    assert line_of(tuned().to_json()) is not None
