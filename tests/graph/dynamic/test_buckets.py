"""A model with ranges of extents, from its bytes to a module, a report and a check."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from mcfuser.bisect import verify_dynamic
from mcfuser.cli.command import app
from mcfuser.compile import CompiledModel, LockedBuild, compile_model
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import DisagreementError, InputError, ModelError
from mcfuser.extents import InputShapes, to_json
from mcfuser.graph.check import check
from mcfuser.graph.dynamic.buckets import load_buckets
from mcfuser.graph.dynamic.describe import length_text
from mcfuser.graph.dynamic.length import LengthSum, Symbol
from mcfuser.graph.dynamic.verify import beyond, compared_at
from mcfuser.graph.external import DataFolder
from mcfuser.graph.inspection import inspect
from mcfuser.graph.limits import DEFAULTS
from mcfuser.graph.running import running
from mcfuser.lock import DeviceLock, Lock, ModelPin
from mcfuser.measure.tolerance import difference
from mcfuser.tune.tuned import MemoryCache, TuneOptions
from tests.support.dynamic_nets import drawn, encoder, run, spans
from tests.support.nets import Net

CPU = device_named("cpu")
QUICK = TuneOptions(trials=1, timeout=3600.0)
SHAPES: InputShapes = {"ids": (spans(1, 2), spans(3, 40)), "mask": (spans(1, 2), spans(3, 40))}


@pytest.fixture(scope="module")
def made() -> CompiledModel:
    model = encoder(masked=True).SerializeToString()
    return compile_model(model, CPU, MemoryCache(), QUICK, SHAPES, buckets=2)


@pytest.fixture(scope="module")
def folder(made: CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `mcfuser compile` writes, beside the model."""
    path = tmp_path_factory.mktemp("dynamic")
    (path / "module.so").write_bytes(made.module)
    (path / "report.json").write_text(json.dumps({**made.report, "shapes": to_json(SHAPES)}))
    onnx.save(encoder(masked=True), path / "model.onnx")
    return path


def test_the_report_has_the_buckets(made: CompiledModel) -> None:
    buckets = made.report["buckets"]
    assert 1 < len(buckets) <= 2
    assert buckets[0]["low"] == {"batch": 1, "length": 3}
    assert buckets[-1]["high"] == {"batch": 2, "length": 40}
    chains = {c for b in buckets for c in b["chains"]}
    assert chains == set(range(len(made.report["chains"])))
    padding = made.report["padding"]
    assert 1 < padding["buckets"] < padding["one_bucket"]
    assert made.report["extents"][1]["places"] == [["ids", 1], ["mask", 1]]


def test_the_mask_of_a_softmax_is_in_its_chain(made: CompiledModel) -> None:
    operators = [o for c in made.report["chains"] for o in c["operators"]]
    assert any(re.match(r"X\[.*select\(\w\[n\], .*, -inf\)", o) for o in operators)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 2), st.integers(3, 40), st.integers(0, 9))
def test_the_module_computes_every_shape(
    made: CompiledModel, folder: Path, batch: int, length: int, seed: int
) -> None:
    assert made.buckets is not None
    model, point = made.buckets.model, {"batch": batch, "length": length}
    feeds = drawn(model, point, seed)
    expected = run(model.fixed(point), feeds)
    with running(folder, feeds, "host") as child:
        assert max(map(difference, child.outputs, expected)) <= 1e-5


def test_one_process_runs_many_shapes(made: CompiledModel, folder: Path) -> None:
    assert made.buckets is not None
    model = made.buckets.model
    with running(folder, drawn(model, {"batch": 1, "length": 3}), "host") as child:
        for length in (3, 16, 17, 23, 40):
            point = {"batch": 2, "length": length}
            feeds = drawn(model, point, length)
            expected = run(model.fixed(point), feeds)
            assert max(map(difference, child.on(feeds), expected)) <= 1e-5
        longer = {name: np.ones((2, 41), np.int64) for name in ("ids", "mask")}
        with pytest.raises(InputError, match="dimension 1 of input 'ids' is 41"):
            child.on(longer)


def test_each_bucket_is_compared_at_three_shapes(made: CompiledModel, folder: Path) -> None:
    found = verify_dynamic(made, folder / "module.so", 0, None)
    assert made.buckets is not None
    points = [p for b in made.buckets.buckets for p in compared_at(b.box)]
    assert len(points) == 6 and [s["extents"] for s in found["shapes"]] == [
        *points,
        *beyond(made.buckets),
    ]
    assert [p["batch"] for p in beyond(made.buckets)] == [5]
    assert found["error"] <= 1e-5 < found["tolerance"]


def differing(monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., dict[str, float]]) -> None:
    """Modules have these errors, whatever they are compared with."""
    monkeypatch.setattr("mcfuser.graph.dynamic.verify.output_errors", wrong)
    monkeypatch.setattr("mcfuser.graph.dynamic.verify.settled_errors", lambda e, *_: dict(e))


def test_a_module_that_differs_is_named_with_its_shapes(
    made: CompiledModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(names: Sequence[str], *results: object) -> dict[str, float]:
        return dict.fromkeys(names, math.inf)

    differing(monkeypatch, wrong)
    with pytest.raises(DisagreementError, match=r"at batch=\d, length=\d+ \(bucket 1\).*bisect"):
        verify_dynamic(made, folder / "module.so", 0, None)


def test_slices_that_differ_are_named(
    made: CompiledModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(names: Sequence[str], outputs: Sequence[np.ndarray], *_: object) -> dict[str, float]:  # type: ignore[type-arg]
        return dict.fromkeys(names, float(len(outputs[0]) == 5))

    differing(monkeypatch, wrong)
    with pytest.raises(DisagreementError, match=r"at batch=5, length=\d+ \(in slices\).*bisect"):
        verify_dynamic(made, folder / "module.so", 0, None)


def test_a_module_is_run_at_a_chosen_shape(folder: Path) -> None:
    model = (folder / "model.onnx").read_bytes()
    checked = check(folder, model, {"ids": (2, 19), "mask": (2, 19)})
    assert checked.agrees
    assert [a.shape for a in checked.ran.outputs.values()] == [(2, 19, 32), (2, 32)]


COMMANDS: Mapping[str, tuple[tuple[str, ...], int, str]] = {
    "at the highest extents": (("--check",), 0, "norm-wise relative error"),
    "at a shape": (("--check", "--shape", "ids=1x7", "--shape", "mask=1x7"), 0, "norm-wise"),
    "outside": (
        ("--check", "--shape", "ids=1x77"),
        2,
        "input 'ids' is 77; the module takes 3 to 40",
    ),
    "more rows": (("--check", "--shape", "ids=7x9", "--shape", "mask=7x9"), 0, "norm-wise"),
    "a range": (("--check", "--shape", "ids=1x3..9"), 2, "one shape is needed here"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_run_takes_shapes_in_the_ranges(name: str, folder: Path) -> None:
    (flag, *rest), status, words = COMMANDS[name]
    model = str(folder / "model.onnx")
    result = CliRunner().invoke(app, ["run", str(folder), flag, model, *rest])
    if status:
        assert isinstance(result.exception, InputError) and words in str(result.exception)
    else:
        assert result.exit_code == 0 and words in result.stdout


def test_run_takes_arrays_of_any_shape_in_the_ranges(folder: Path, tmp_path: Path) -> None:
    ones = np.ones((2, 11), np.int64)
    np.savez(tmp_path / "inputs.npz", ids=ones, mask=ones)
    words = ["run", str(folder), "--inputs", str(tmp_path / "inputs.npz")]
    alone = CliRunner().invoke(app, words)
    assert alone.exit_code == 0 and "float32 2x11x32" in alone.stdout
    compared = CliRunner().invoke(app, [*words, "--check", str(folder / "model.onnx")])
    assert compared.exit_code == 0 and "norm-wise relative error" in compared.stdout


def test_inspection_takes_ranges() -> None:
    model = encoder(masked=True).SerializeToString()
    inspect(model, SHAPES)
    with pytest.raises(ModelError, match="in the model both are 'length'"):
        inspect(model, {**SHAPES, "mask": (spans(1, 2), spans(3, 50))})


def test_lengths_are_told_in_words() -> None:
    n, m = Symbol("n"), Symbol("m")
    assert length_text(LengthSum(((n, 1), (m, 2)), -1)) == "n + 2 * m - 1"
    assert length_text(LengthSum((), 3)) == "3" == length_text(3)


def test_extents_with_several_names_are_one_where_the_model_needs_it() -> None:
    """torch's exporter names each input's dimensions by itself."""
    net = Net()
    total = net.op("Add", net.input("x", "s10", 8), net.input("y", "s86", 8))
    row = net.op("MatMul", net.op("Transpose", total, perm=[1, 0]), total)
    shapes: InputShapes = {"x": (spans(2, 9), 8), "y": (spans(2, 9), 8)}
    model = net.model(row).SerializeToString()
    loaded = load_buckets(model, shapes, DEFAULTS, None, 1, lambda one: 1.0)
    (extent,) = loaded.model.shapes.extents
    assert extent.places == (("x", 0), ("y", 0))
    with pytest.raises(ModelError, match="different run-time extents"):
        load_buckets(model, {**shapes, "y": (spans(2, 8), 8)}, DEFAULTS, None, 1, lambda one: 1.0)


def test_a_table_that_only_known_positions_read_is_not_kept(tmp_path: Path) -> None:
    """Positions counted from 0 are rows that are known, whatever the length is."""
    net = Net()
    x, table = net.input("x", "n", 64), net.const(np.ones((2048, 64)))
    length = net.op("Squeeze", net.op("Shape", x, start=0, end=1), net.ints(0))
    rows = net.op("Range", net.const(0, np.int64), length, net.const(1, np.int64))
    model = net.model(net.op("Softmax", net.op("Add", x, net.op("Gather", table, rows)), axis=0))
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, size_threshold=0, location="data")
    shapes: InputShapes = {"x": (spans(2, 9), 64)}
    folder = DataFolder(tmp_path)
    loaded = load_buckets(path.read_bytes(), shapes, DEFAULTS, folder, 1, lambda one: 1.0)
    assert len(loaded.buckets) == 1


def test_a_lock_has_the_buckets_too(made: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What padding costs was predicted by this machine's rates: it is not asked again."""
    model = encoder(masked=True).SerializeToString()
    pins = ModelPin.model_validate(made.report["lock"])
    there = DeviceLock(toolchain=pins.toolchain, sources=pins.sources, chains=pins.chains)
    lock = Lock(devices={pins.device: there})
    monkeypatch.setattr("mcfuser.graph.dynamic.buckets.choose", None)
    locked = LockedBuild(lock, "mcfuser.lock", pins.buckets)
    again = compile_model(model, CPU, MemoryCache(), QUICK, SHAPES, locked=locked)
    assert again.report["buckets"] == made.report["buckets"]
    assert bytes(again.module) == bytes(made.module)
    with pytest.raises(InputError, match=r"mcfuser\.lock has no buckets for this model"):
        unknown = replace(locked, buckets=None)
        compile_model(model, CPU, MemoryCache(), QUICK, SHAPES, locked=unknown)
    with pytest.raises(ModelError, match="do not divide the ranges batch"):
        part = replace(locked, buckets=pins.buckets[:1])
        compile_model(model, CPU, MemoryCache(), QUICK, SHAPES, locked=part)
