"""Zoo files: what they name, and the one sentence where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcfuser.batch.zoo import Entry, read_zoo
from mcfuser.errors import InputError

JOB = "https://me:secret@host:8642/v1/jobs/04b9f73c-a4b6-46e5-add7-4601fb1225bf"
FILES = ("a.onnx", "b.onnx", "more/c.onnx", "more/deep/d.onnx", "odd [1].onnx", "notes.txt")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "none").mkdir()
    return tmp_path


def entries(folder: Path, text: str | bytes) -> tuple[Entry, ...]:
    (folder / "zoo.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    return read_zoo(folder / "zoo.toml")


def model(more: str) -> str:
    return f'[[models]]\nfiles = "a.onnx"\n{more}\n'


def test_models_times_devices_times_shapes(folder: Path) -> None:
    found = entries(folder, """
        [defaults]
        devices = ["cpu", "l4"]
        timeout = "2m"
        trials = 5
        [[models]]
        files = ["a.onnx", "more/*.onnx"]
        shapes = [{ x = [1, 128] }, { y = [2], x = [8, 64] }]
        [[models]]
        files = "more/**/d.onnx"
        devices = "h100"
        timeout = 30
    """)  # fmt: skip
    assert [(e.name, e.device, e.shapes) for e in found] == [
        ("a.onnx", "cpu", ("x=1x128",)),
        ("a.onnx", "cpu", ("x=8x64", "y=2")),
        ("a.onnx", "nvidia/l4", ("x=1x128",)),
        ("a.onnx", "nvidia/l4", ("x=8x64", "y=2")),
        ("more/c.onnx", "cpu", ("x=1x128",)),
        ("more/c.onnx", "cpu", ("x=8x64", "y=2")),
        ("more/c.onnx", "nvidia/l4", ("x=1x128",)),
        ("more/c.onnx", "nvidia/l4", ("x=8x64", "y=2")),
        ("more/deep/d.onnx", "nvidia/h100", ()),
    ]
    assert [e.options.timeout for e in found] == [120.0] * 8 + [30.0]
    assert {e.options.trials for e in found} == {5}
    assert found[0].model == folder / "a.onnx"
    assert len({e.folder for e in found}) == len(found)


def test_one_model_may_have_several_precisions(folder: Path) -> None:
    found = entries(folder, "\n".join(map(model, ("", 'precision = "fp16"', 'precision = "bf16"'))))
    assert [e.title for e in found] == ["a.onnx cpu", "a.onnx cpu fp16", "a.onnx cpu bf16"]
    assert [e.options.precision for e in found] == [None, "fp16", "bf16"]
    assert len({e.folder for e in found}) == 3
    assert found == entries(folder, model('precision = ["own", "fp16", "bf16"]'))
    defaults = "[defaults]\nprecision = ['fp16', 'bf16']\n"
    narrow, wide = model(""), model('precision = "own"')
    assert found[1:] + found[:1] == entries(folder, defaults + narrow + wide)


def test_precisions_are_for_every_device_and_shape(folder: Path) -> None:
    found = entries(folder, model("""
        devices = ["cpu", "l4"]
        shapes = [{ x = [1] }, { x = [2] }]
        precision = ["own", "fp16"]
    """))  # fmt: skip
    assert [e.title for e in found] == [
        f"a.onnx {device} x={extent}{precision}"
        for device in ("cpu", "nvidia/l4") for extent in (1, 2) for precision in ("", " fp16")
    ]  # fmt: skip


def test_a_file_is_no_pattern_where_it_is_there(folder: Path) -> None:
    found = entries(folder, '[[models]]\nfiles = "odd [1].onnx"')
    assert [e.name for e in found] == ["odd [1].onnx"]


def test_a_folder_is_every_model_below_it(folder: Path) -> None:
    (folder / "more" / "notes.txt").write_bytes(b"")
    (folder / "more" / "loop").symlink_to(folder)
    for words in ("more", "more/"):
        found = entries(folder, f'[[models]]\nfiles = "{words}"')
        assert [e.name for e in found] == ["more/c.onnx", "more/deep/d.onnx"]
    found = entries(folder, '[[models]]\nfiles = "."')
    assert [e.name for e in found][:2] == ["a.onnx", "b.onnx"]


def test_a_server_s_job_is_an_entry(folder: Path) -> None:
    (found, other) = entries(folder, f"""
        [defaults]
        devices = ["l4", "h100"]
        tolerance = 1e-2
        [[models]]
        files = ["{JOB}", "a.onnx"]
        devices = "cpu"
    """)  # fmt: skip
    assert (found.job, found.device, found.options.tolerance) == (JOB, "host", 1e-2)
    assert "secret" not in found.title + found.folder + str(found.to_json())
    assert other.job is None and other.device == "cpu"


def test_equal_entries_are_one(folder: Path) -> None:
    found = entries(
        folder, '[[models]]\nfiles = ["*.onnx", "a.onnx"]\ndevices = ["l4", "nvidia/l4"]'
    )
    assert [e.name for e in found] == ["a.onnx", "b.onnx", "odd [1].onnx"]


BAD = {
    "no models": ("", "has no 'models'"),
    "models in brackets": ("[models]", "'models' is {}"),
    "no tables": ("models = []", "'models' is []"),
    "words for tables": ('models = ["a.onnx"]', "'models.0' is 'a.onnx'"),
    "no files": ("[[models]]\nseed = 1", "models number 1 has no 'files'"),
    "an empty list": ("[[models]]\nfiles = []", "'files' is []"),
    "a number for a file": ("[[models]]\nfiles = 3", "'files.0' is 3"),
    "no such file": ('[[models]]\nfiles = "x.onnx"', "no file 'x.onnx' lies in"),
    "no match": ('[[models]]\nfiles = "*.bin"', "no file '*.bin' lies in"),
    "an empty folder": ('[[models]]\nfiles = "none"', "no .onnx file below 'none' lies in"),
    "no job": (
        '[[models]]\nfiles = "http://host/v1/jobs/x"',
        "is no job's address; write https://",
    ),
    "shapes of a job": (
        f'[[models]]\nfiles = "{JOB}"\nshapes = {{ x = [1] }}',
        "was posted with its own shapes",
    ),
    "nothing": ('[[models]]\nfiles = ""', "printable characters"),
    "a null byte": ('[[models]]\nfiles = "a\\u0000b"', "printable characters"),
    "an unknown key": (model("thing = 1"), "key 'thing' is not known; use devices, files,"),
    "an unknown table": (model("") + "[other]", "key 'other' is not known; use defaults, models"),
    "an unknown default": ("[defaults]\nfiles = 'a.onnx'\n" + model(""), "'defaults.files'"),
    "defaults in words": ("defaults = 'all'\n" + model(""), "'defaults' is 'all'"),
    "a bad default": ("[defaults]\nseed = -1\n" + model(""), "'defaults.seed' is -1"),
    "an unknown device": (model('devices = "abacus"'), "device 'abacus' is not known; use one of"),
    "no devices": (model("devices = []"), "'devices' is []"),
    "a negative seed": (model("seed = -1"), "'seed' is -1"),
    "a seed that is none": (model("seed = true"), "'seed' is True"),
    "no trials": (model("trials = 0"), "'trials' is 0"),
    "half a trial": (model("trials = 1.5"), "'trials' is 1.5"),
    "a time that is none": (model('timeout = "soon"'), "'soon' is not a time"),
    "no time": (model("timeout = 0"), "'0' is not a time"),
    "endless time": (model("timeout = inf"), "'inf' is not a time"),
    "more than a week": (model('limit = "200h"'), "'limit' is '200h'"),
    "a huge time": (model(f"timeout = {'9' * 400}.0"), "is not a time"),
    "a date": (model("timeout = 2020-01-01"), "'timeout' is datetime.date(2020, 1, 1)"),
    "a tolerance of nan": (model("tolerance = nan"), "'tolerance' is nan"),
    "one output of two inputs": (
        model('in_place = { a = "c", b = "c" }'),
        "output 'c' is updated in place twice",
    ),
    "an unknown precision": (
        model('precision = "fp8"'),
        "'precision.0' is 'fp8': use one of own, fp16, bf16",
    ),
    "no precision": (model("precision = []"), "'precision' is []"),
    "a large tolerance": (model("tolerance = 2.0"), "'tolerance' is 2.0"),
    "shapes in words": (model('shapes = "x=1x2"'), "'shapes.0' is 'x=1x2'"),
    "a shape of words": (model('shapes = { x = "1x2" }'), "'shapes.0.x' is '1x2'"),
    "a shape of nothing": (model("shapes = { x = [] }"), "'shapes.0.x' is []"),
    "an extent below zero": (model("shapes = { x = [-1] }"), "'shapes.0.x.0' is -1"),
    "a huge extent": (model("shapes = { x = [9999999999] }"), "'shapes.0.x.0' is 9999999999"),
    "half a range": (model('shapes = { x = ["1.."] }'), "a range as '1..8', is expected"),
    "an extent in words": (model('shapes = { x = ["a"] }'), "'shapes.0.x.0' is 'a'"),
    "a nameless input": (model('shapes = { "" = [1] }'), "printable characters"),
    "other options": (model("") + model("seed = 1"), "'a.onnx cpu' stands in an earlier table"),
    "no TOML": ("[[models", "is not TOML"),
    "a key twice": ("a = 1\na = 2", "is not TOML"),
    "too many digits": (f"a = {'9' * 5000}", "is not TOML"),
    "nested too deep": ("a = " + "[" * 100_000, "nested too deep"),
    "not UTF-8": (b"a = '\xff'", "is not UTF-8 at byte 5"),
    "too large": ("#" * (1 << 20) + "\n", "is larger than 1048576 bytes"),
    "too many entries": (
        model(f"shapes = [{', '.join(f'{{x=[{i}]}}' for i in range(1, 10_002))}]"),
        "more than 10000 entries",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_sentence(name: str, folder: Path) -> None:
    text, sentence = BAD[name]
    with pytest.raises(InputError) as caught:
        entries(folder, text)
    told = str(caught.value)
    assert sentence in told
    assert told.startswith("zoo '") and "\n" not in told and len(told) < 700


def test_a_zoo_that_is_not_there_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "zoo.toml", tmp_path):
        with pytest.raises(InputError, match="cannot be read: "):
            read_zoo(path)


GOOD = model('devices = ["cpu"]\nshapes = [{ x = [1, 2] }]\ntimeout = "5s"\n') + "[defaults]\n"


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 9), st.binary(max_size=6)), max_size=4
    )
)
def test_a_mangled_zoo_is_read_or_refused(
    folder: Path, changes: list[tuple[int, int, bytes]]
) -> None:
    text = GOOD.encode()
    for at, removed, added in changes:
        text = text[:at] + added + text[at + removed :]
    try:
        entries(folder, text)
    except InputError as error:
        assert "\n" not in str(error)
