"""Attributes and inputs that onnxruntime's operators have, and those that a newer one would add."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from mcfuser.errors import ModelError
from mcfuser.graph.rewrite.apply import rewrite
from mcfuser.graph.rewrite.reviewed import MICROSOFT, REVIEWED
from mcfuser.graph.rewrite.table import REWRITES
from tests.support.one_node import one_node

NAMES = sorted(name for domain, name in REWRITES if domain == MICROSOFT)


def test_every_operator_was_reviewed() -> None:
    assert sorted(REVIEWED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_this_onnxruntime_has_was_reviewed(name: str) -> None:
    """Where this fails, onnxruntime is newer: read what is new, and write it or refuse it."""
    schemas = [s for s in get_all_operator_schema() if (s.domain, s.name) == (MICROSOFT, name)]
    count, names = REVIEWED[name]
    assert schemas
    for schema in schemas:
        assert {*schema.attributes} <= names
        assert len(schema.inputs) <= count


@pytest.mark.parametrize(
    ("inputs", "more", "words"),
    [
        (["x", "b"], {"turned": 1}, "its attribute 'turned' is not known here"),
        (["x", "b", "x"], {}, "its input number 2, 'x', is not known here"),
    ],
)
def test_what_is_new_is_refused(inputs: list[str], more: dict[str, object], words: str) -> None:
    given = {n: np.ones(4, np.float32) for n in "xb"}
    model = one_node("BiasGelu", inputs, 1, given, {}, MICROSOFT)
    model.graph.node[0].attribute.extend(helper.make_attribute(n, v) for n, v in more.items())
    with pytest.raises(ModelError, match=rf"'BiasGelu' of domain 'com.microsoft'.*{words}"):
        rewrite(model)
