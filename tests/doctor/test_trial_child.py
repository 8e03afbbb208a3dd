"""The model of the trial."""

from __future__ import annotations

import onnx

from mcfuser.doctor.trial_child import small_model


def test_the_model_is_one_and_has_a_product() -> None:
    model = small_model()
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Relu"]
