"""Outputs written into the memory of inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from tvm import relax

from mcfuser.codegen.llvm import module as llvm
from mcfuser.devices.cpu import probe_cpu
from mcfuser.errors import ModelError
from mcfuser.graph.check import answer, answered, reference_run, reference_session
from mcfuser.graph.inplace import paired
from mcfuser.graph.load import bound, load
from tests.support.caches import CACHE, MODELS, CacheModel, grouped

PAIR = {"past": "present"}


def ran(
    proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], pairs: Mapping[str, str]
) -> tuple[list[np.ndarray], dict[str, tvm.runtime.Tensor], list[tvm.runtime.Tensor]]:
    """Results as arrays, the inputs as the module leaves them, and the results as it gives them."""
    loaded = load(proto.SerializeToString(), {}, in_place=pairs)
    built = tvm.compile(loaded.module, target=llvm.cpu_target(probe_cpu()))
    machine = relax.VirtualMachine(built, tvm.cpu())
    tensors = {p.name: tvm.runtime.tensor(feeds[p.name]) for p in loaded.inputs}
    results = machine["main"](*tensors.values())
    return [r.numpy() for r in results], tensors, list(results)


def expected(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return answer(reference_session(bound(proto.SerializeToString(), {})), feeds)


@pytest.mark.parametrize("name", MODELS)
def test_the_cache_that_is_given_is_the_one_that_is_returned(name: str) -> None:
    model = MODELS[name]
    proto, feeds = model.proto(), {"past": model.past(), **model.inputs}
    found, given, results = ran(proto, feeds, PAIR)
    wanted = reference(name, proto, feeds)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert results[1].same_as(given["past"])
    np.testing.assert_array_equal(given["past"].numpy(), wanted[1])
    assert not np.array_equal(wanted[1], feeds["past"]), "the model changes nothing"
    for other in model.inputs:
        np.testing.assert_array_equal(given[other].numpy(), feeds[other])


def reference(
    name: str, proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """What onnxruntime computes; of TensorScatter, which it may not have, what it is defined as."""
    if not name.startswith("rows"):
        return expected(proto, feeds)
    present, new = feeds["past"].copy(), feeds["new"]
    for b, start in enumerate(feeds["at"]):
        for row in range(new.shape[-2]):
            present[b, ..., (start + row) % present.shape[-2], :] = new[b, ..., row, :]
    return [present @ np.swapaxes(present, -1, -2), present]


@pytest.mark.parametrize("name", MODELS)
def test_without_being_asked_nothing_is_changed(name: str) -> None:
    model = MODELS[name]
    feeds = {"past": model.past(), **model.inputs}
    _, given, results = ran(model.proto(), feeds, {})
    np.testing.assert_array_equal(given["past"].numpy(), feeds["past"])
    assert not results[1].same_as(given["past"])


def test_nothing_of_the_size_of_the_cache_is_computed() -> None:
    model = MODELS["scattered, turned"]
    module = load(model.proto().SerializeToString(), {}, in_place=PAIR).module
    calls = [b.value for block in module["main"].body.blocks for b in block.bindings]
    made = [c.op.name for c in calls if isinstance(c, relax.Call)]
    assert made.count("relax.call_tir_inplace") == 1
    assert "relax.scatter_nd" not in made


@settings(max_examples=6)
@given(
    st.permutations(range(4)),
    st.lists(st.tuples(st.integers(0, 7), st.integers(-9, 9)), min_size=1, max_size=3),
)
def test_a_scatter_in_any_order_of_dimensions(
    order: Sequence[int], at: Sequence[tuple[int, int]]
) -> None:
    """Indices outside of the tensor, which ONNX does not allow, change nothing."""
    back = [order.index(i) for i in range(4)]
    seen = [CACHE[i] for i in order]
    indices = np.asarray([[row % seen[0], column] for row, column in at], np.int64)
    indices = indices[np.unique(indices % seen[:2], axis=0, return_index=True)[1]]
    new = np.random.default_rng(2).standard_normal((len(indices), *seen[2:])).astype(np.float32)
    model = CacheModel(
        [
            helper.make_node("Transpose", ["past"], ["first"], perm=order),
            helper.make_node("ScatterND", ["first", "at", "new"], ["second"]),
            helper.make_node("Transpose", ["second"], ["present"], perm=back),
        ],
        {"new": new, "at": indices},
    )
    past = model.past()
    wanted = past.transpose(order).copy()
    for (row, column), values in zip(indices, new, strict=True):
        if -seen[1] <= column < seen[1]:
            wanted[row, column] = values
    _, given_, _ = ran(model.proto(), {"past": past, **model.inputs}, PAIR)
    np.testing.assert_array_equal(given_["past"].numpy(), wanted.transpose(back))


@pytest.mark.thorough
@pytest.mark.parametrize("last", [(0, 0), (2, 5), (7, 3)])
def test_the_cache_of_grouped_attention_keeps_what_lies_behind_as_onnxruntime_does(
    last: tuple[int, int],
) -> None:
    model = grouped(last)
    proto = model.proto()
    proto.graph.output.extend(
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None)
        for n in ("y", "present_values")
    )
    pairs = {**PAIR, "values": "present_values"}
    feeds = {"past": model.past(), **model.inputs}
    session = reference_session(bound(proto.SerializeToString(), {}))
    for shared in ({}, pairs):
        wanted = answered(reference_run(session, feeds, shared))
        found, given_, _ = ran(proto, feeds, shared)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        behind = found[1][0, :, last[0] + 1 :]
        before = feeds["past"][0, :, last[0] + 1 :]
        np.testing.assert_array_equal(behind, before if shared else 0 * before)
        assert (given_["values"].numpy() != feeds["values"]).any() == bool(shared)


# --- what is refused --------------------------------------------------------------------------


def refused(model: CacheModel, pairs: Mapping[str, str], *more: onnx.NodeProto) -> str:
    results = [n for node in more for n in node.output]
    data = model.proto(more, results).SerializeToString()
    with pytest.raises(ModelError) as told:
        load(data, {}, in_place=pairs)
    return str(told.value)


WHERE = MODELS["where, new where true"]


INPUTS = ("ids", "past.0.key", "past.1.key", "past.0.value")
OUTPUTS = ("logits", "present.0.key", "present.1.key", "present.0.value")


def test_a_star_stands_for_every_input_that_is_named_so() -> None:
    assert paired({"past.*.key": "present.*.key"}, INPUTS, OUTPUTS) == {
        "past.0.key": "present.0.key", "past.1.key": "present.1.key",
    }  # fmt: skip
    assert len(paired({"past.*": "present.*"}, INPUTS, OUTPUTS)) == 3
    assert paired({"ids": "logits"}, INPUTS, OUTPUTS) == {"ids": "logits"}
    starred = ("past.*",)
    assert paired({"past.*": "present"}, starred, ("present",)) == {"past.*": "present"}


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (("past.*", "present"), "each has one '*'"),
        (("past", "present.*"), "each has one '*'"),
        (("past.*.*", "present.*.*"), "each has one '*'"),
        (("before.*", "present.*"), "the model has no such input; it has ids, past.0.key"),
        (("past.*", "after.*"), "for 'past.0.key': the model has no such output; it has logits"),
    ],
)
def test_stars_that_stand_for_nothing_are_refused(pair: tuple[str, str], words: str) -> None:
    with pytest.raises(ModelError, match=re.escape(words)):
        paired(dict([pair]), INPUTS, OUTPUTS)


def test_what_a_star_stood_for_is_told() -> None:
    module = load(WHERE.proto().SerializeToString(), {}, in_place={"pas*": "presen*"})
    assert module.in_place == PAIR


def test_other_names_are_told() -> None:
    assert refused(WHERE, {"pest": "present"}) == (
        "output 'present' cannot be written into input 'pest': the model has no such input; it has "
        "past, new, at"
    )
    assert "no such output; it has scores, present" in refused(WHERE, {"past": "prescent"})


def test_a_long_list_of_names_is_cut() -> None:
    many = {f"more{i}": np.zeros(1, np.float32) for i in range(40)}
    nodes = [helper.make_node("Identity", [n], [f"out_{n}"]) for n in many]
    model = CacheModel(WHERE.nodes, {**WHERE.inputs, **many}, WHERE.constants)
    told = refused(model, {"pest": "present"}, *nodes)
    assert told.endswith("and 23 more") and len(told) < 400


def test_another_shape_is_told() -> None:
    told = refused(WHERE, {"past": "scores"})
    assert told.endswith("the one is float32[2, 3, 8, 8], the other float32[2, 3, 8, 4]")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (helper.make_node("Neg", ["present"], ["other"]), "it is computed by negative, and not"),
        (helper.make_node("ScatterElements", ["past", "where", "new_row"], ["other"],
                          axis=2, reduction="add"), "it is computed by scatter_elements"),
        (helper.make_node("Where", ["within", "past", "past"], ["other"]), "also reads the input"),
    ],
)  # fmt: skip
def test_what_is_no_update_of_the_cache_is_told(more: onnx.NodeProto, words: str) -> None:
    model = CacheModel(
        WHERE.nodes, WHERE.inputs,
        {**WHERE.constants, "where": np.zeros((2, 3, 1, 4), np.int64),
         "new_row": np.zeros((2, 3, 1, 4), np.float32)},
        opset=18,
    )  # fmt: skip
    assert words in refused(model, {"past": "other"}, more)


def test_whatever_else_reads_the_input_is_named() -> None:
    more = helper.make_node("Exp", ["past"], ["other"], name="an_exponential")
    told = refused(WHERE, PAIR, more)
    assert told.endswith("'an_exponential' also reads the input, which would have changed")


def test_an_input_that_is_an_output_as_well_is_told() -> None:
    more = helper.make_node("Identity", ["past"], ["other"])
    assert "an output also reads the input" in refused(WHERE, PAIR, more)


def test_another_order_of_elements_is_told() -> None:
    square = CacheModel(
        [
            helper.make_node("Where", ["within", "new", "past"], ["changed"]),
            helper.make_node("Transpose", ["changed"], ["present"], perm=[1, 0]),
        ],
        {"new": np.ones((4, 4), np.float32), "within": np.eye(4) > 0}, cache=(4, 4),
    )  # fmt: skip
    assert refused(square, PAIR).endswith("its elements are in another order")
