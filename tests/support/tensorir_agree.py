"""TensorIR functions beside the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import tvm

from mcfuser.chain import Bounds, Chain, fixed, flat_size
from mcfuser.codegen.script import prim_func
from mcfuser.codegen.tensorir import TensorirSource, build, generate
from mcfuser.codegen.tensorir.build import (
    compile_function,
    kernel_passes,
    pack,
)
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.reference import logical
from mcfuser.space.schedule import Schedule

WIDE = TensorirKnobs(8, 2, 16)


def run(schedule: Schedule, plain: Chain, lowering: TensorirKnobs, inputs: dict) -> dict:
    """The outputs of the generated function, as the chain indexes them."""
    source = generate(schedule, "kernel", lowering)
    return call(source, _built(source.text), plain, inputs, {})


@lru_cache(maxsize=64)
def _built(text: str) -> Callable:
    """Tests of one kernel's values on several inputs compile it once."""
    return compile_function(text, "kernel")


def compiled(texts: Sequence[str]) -> list[Callable]:
    """Functions built as one module, in a third less time than one by one; each text has one named
    `kernel`."""
    names = [f"kernel_{i}" for i in range(len(texts))]
    functions = {
        name: prim_func(text).with_attr("global_symbol", name)
        for name, text in zip(names, texts, strict=True)
    }
    with kernel_passes():
        built = tvm.compile(tvm.IRModule(functions), target=build.host_target())
    return [built[name] for name in names]


def call(
    source: TensorirSource,
    function: Callable,
    chain: Chain,
    inputs: dict,
    extents: Mapping[str, int],
    place: Callable[[np.ndarray], tvm.runtime.Tensor] = tvm.runtime.tensor,
) -> dict:
    """The same of a function that is built, for these values of the run-time extents; `place` puts
    arrays where the function finds them."""
    packed, plain = dict(source.packed), fixed(chain, extents)
    arguments = []
    for name in plain.inputs:
        array = inputs[name].astype(plain.tensor(name).dtype)
        flat = pack(logical(plain, name, array), packed[name]) if name in packed else array
        shape = (-1,) if name in packed else _shape(chain, plain, name)
        arguments.append(place(np.ascontiguousarray(flat.reshape(shape))))
    arguments += [extents[a] for a in source.scalars]
    outputs = {}
    for name in plain.outputs:
        empty = np.full(flat_size(plain, name), np.nan, plain.tensor(name).dtype)
        outputs[name] = place(empty.reshape(_shape(chain, plain, name)))
    function(*arguments, *outputs.values())
    return {n: logical(plain, n, t.numpy().reshape(-1)) for n, t in outputs.items()}


def drawn_arrays(chain: Chain) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Flat arrays of a chain's inputs, and the same as the chain indexes them."""
    rng = np.random.default_rng(0)
    flat = {n: rng.standard_normal(flat_size(chain, n)).astype("float32") for n in chain.inputs}
    return flat, {n: logical(chain, n, a) for n, a in flat.items()}


def _shape(chain: Chain, plain: Chain, name: str) -> tuple[int, ...]:
    """What is dense and has run-time extents keeps its dimensions; all else is flat."""
    tensor = chain.tensor(name)
    run_time = any(isinstance(d, str) and isinstance(chain.extent(d), Bounds) for d in tensor.shape)
    return plain.shape(name) if run_time and tensor.strides is None else (-1,)


def error(found: dict, expected: dict) -> float:
    return max(
        float(np.linalg.norm(a - expected[n]) / (np.linalg.norm(expected[n]) or 1.0))
        for n, a in found.items()
    )
