"""A model at a glance: every operator stands in one step, in the order in which they run."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from mcfuser.codegen.cuda.cluster import recurrence_limits
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.explain import explain
from mcfuser.graph.leftover import NOT_COMPUTED
from mcfuser.graph.load import load
from mcfuser.graph.outline import outline
from mcfuser.graph.partition import partition
from mcfuser.graph.selection import places
from tests.support.models import model
from tests.support.paths import FIXTURES

GPU = CATALOGUE["nvidia/h200"]


@pytest.mark.parametrize("name", ["attention_nan_guard", "recurrent_gru", "three_products"])
def test_it_has_every_operator_that_runs_once(name: str) -> None:
    data = (FIXTURES / f"{name}.onnx").read_bytes()
    module = load(data, {}, recurrences=recurrence_limits(GPU)).module
    parted = partition(module, GPU.throughput("float32"), GPU.bandwidth)
    steps = outline(module, parted, list(places(parted.matches)))
    explained = [o for o in explain(data, GPU, {}).operators if o.reason != NOT_COMPUTED]
    counted = Counter[str]()
    for step in steps:
        counted.update(step.operators)
    assert counted == Counter(o.operator for o in explained)
    assert {s.reason for s in steps if s.chain is None} == {
        o.reason for o in explained if o.region is None
    }
    assert [s.name for s in steps if s.chain is not None] == [m.chain.name for m in parted.matches]
    assert not any(a.chain is b.chain is None and a.reason == b.reason for a, b in pairwise(steps))


def test_an_operator_without_a_chain_says_why() -> None:
    module = load(model("Add"), {}).module
    parted = partition(module, GPU.throughput("float32"), GPU.bandwidth)
    (first, *_) = outline(module, parted, [])
    assert first.chain is None and "add" in first.operators and first.reason
    assert first.to_json() == {
        "chain": None, "name": first.name, "operators": dict(first.operators),
        "reason": first.reason,
    }  # fmt: skip
