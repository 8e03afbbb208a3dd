"""Recurrent nodes of ONNX with random weights, and models of one such node."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from tests.support.one_node import one_node

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Products of a step with the state, of each kind of node."""
EVERY = {"LSTM": "X W R B h c P", "GRU": "X W R B h", "RNN": "X W R B h"}
"""The inputs of each kind but the lengths of sequences."""
SLOTS = ("X", "W", "R", "B", "lengths", "h", "c", "P")

FUNCTIONS: list[tuple[str, list[str], dict[str, object]]] = [
    ("LSTM", ["HardSigmoid", "Relu", "Softsign"], {}),
    ("LSTM", ["Sigmoid", "Tanh", "Relu"], {"clip": 0.5}),
    ("LSTM", ["Sigmoid", "Tanh", "Tanh"], {"input_forget": 1}),
    ("GRU", ["HardSigmoid", "LeakyRelu"],
     {"activation_alpha": [0.3, 0.1], "activation_beta": [0.4]}),
    ("GRU", ["Sigmoid", "Tanh"], {"clip": 0.4}),
    ("RNN", ["Softplus"], {}),
    ("RNN", ["Elu"], {"activation_alpha": [0.5]}),
    ("RNN", ["ThresholdedRelu"], {"activation_alpha": [0.2]}),
    ("RNN", ["Tanh"], {"clip": 0.3}),
]  # fmt: skip
"""Kinds of nodes, the functions of their gates, and the attributes beside these."""


def arrays(
    kind: str, directions: int = 1, batch: int = 2, steps: int = 5, layout: int = 0,
    hidden: int = 4, width: int = 3, seed: int = 0,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:  # fmt: skip
    """Inputs and weights of a node with all its optional inputs."""
    random = np.random.default_rng(seed)
    gates = GATES[kind] * hidden

    def drawn(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    given = {"X": drawn(*((batch, steps, width) if layout else (steps, batch, width)))}
    given |= {"h": drawn(*state), "c": drawn(*state)}
    weights = {
        "W": drawn(directions, gates, width), "R": drawn(directions, gates, hidden),
        "B": drawn(directions, 2 * gates), "P": drawn(directions, 3 * hidden),
    }  # fmt: skip
    return given, weights


def recurrent_model(
    kind: str, slots: str, given: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray],
    **attributes: object,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    """A model of one node with those inputs that `slots` names, and what it is given."""
    names = [n if n in slots.split() else "" for n in SLOTS]
    given, weights = ({n: a for n, a in x.items() if n in names} for x in (given, weights))
    hidden = (given | weights)["R"].shape[2]
    while not names[-1]:
        names.pop()
    model = one_node(
        kind, names, 3 if kind == "LSTM" else 2, given, weights, hidden_size=hidden, **attributes
    )
    return model, given
