"""Kernels that write parts of concatenations in place compute what they did, and less is copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm_ffi.registry import remove_global_func

from mcfuser.codegen.cuda.beside import beside, copying, within_arrays
from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.load import load
from mcfuser.graph.partition import partition
from mcfuser.graph.selection import ChainMatch
from tests.support.concatenations import WIDTH, Make, Model, drawn, installed
from tests.support.naive import primfunc
from tests.support.nets import Net


def results(module: tvm.IRModule, *shape: int) -> list[NDArray[Any]]:
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    built = tvm.compile(module, target="llvm")
    made = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x))
    return [np.asarray(m.numpy()) for m in made]


def calls(module: tvm.IRModule, *names: str) -> int:
    """The calls of Relax operators of these names."""
    values = [b.value for block in module["main"].body.blocks for b in block.bindings]
    made = [v.op.name for v in values if isinstance(v, relax.Call) and hasattr(v.op, "name")]
    return sum(name.removeprefix("relax.") in names for name in made)


def check(model: Model, *shape: int) -> tvm.IRModule:
    """The module with kernels that write in place, which computes the same bits."""
    made = beside(model.module)
    relax.analysis.well_formed(made)
    for before, after in zip(results(model.module, *shape), results(made, *shape), strict=True):
        np.testing.assert_array_equal(before, after)
    return made


def dense_block(model: Model, x: relax.Var) -> list[relax.Var]:
    """Each layer reads all before it."""
    kept = [model.one([x], 4)]
    for _ in range(3):
        kept.append(model.one([model.join(*kept)], 2))
    return [model.one([model.join(*kept), kept[0]], 4)]


def test_a_dense_block_copies_nothing() -> None:
    made = check(Model(dense_block), 1, 2, WIDTH)
    assert calls(made, "concat", "strided_slice") == 0
    assert calls(made, "builtin.alloc_tensor") == 1


def test_the_parts_of_a_part_lie_in_the_same_array() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        a, b, c = (model.one([x], n) for n in (3, 1, 2))
        inner = model.join(a, b)
        return [model.one([model.join(c, inner), model.one([inner], 5)], 2)]

    made = check(Model(make), 1, 2, WIDTH)
    assert calls(made, "concat", "strided_slice") == 0


def test_a_kernel_may_write_some_of_its_results_in_place_or_several() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        a, b, c, d = model.run([x], 2, 3, 1, 2)
        whole = model.join(a, c, d)
        return [model.one([whole, b], 4), b]

    made = check(Model(make), 1, 2, WIDTH)
    assert calls(made, "concat", "strided_slice") == 0


def test_one_kernel_may_read_and_write_several_arrays() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        a, b = model.run([x], 2, 3)
        c, d = model.run([a, b], 1, 2)
        one, other = model.join(a, c), model.join(b, d)
        return [model.one([one, other, a, d], 4)]

    made = check(Model(make), 1, 2, WIDTH)
    assert calls(made, "concat", "strided_slice") == 0
    assert calls(made, "builtin.alloc_tensor") == 2


def test_what_no_kernel_reads_in_place_is_copied_out() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        kept = [model.one([x], 2)]
        for _ in range(3):
            kept.append(model.one([model.join(*kept)], 2))
        return [model.one([model.join(*kept)], 1), model.emit(relax.op.nn.relu(kept[1]))]

    made = check(Model(make), 1, 2, WIDTH)
    assert (calls(made, "concat"), calls(made, "strided_slice")) == (0, 1)


def test_what_no_kernel_writes_is_copied_in_once() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        kept = [model.emit(relax.op.nn.relu(x))]
        for _ in range(3):
            kept.append(model.one([model.join(*kept)], 2))
        return [model.one([model.join(*kept)], 1)]

    made = check(Model(make), 1, 2, WIDTH)
    assert calls(made, "concat", "strided_slice") == 0
    names = [v.name_hint for v, f in made.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert sum(n.startswith("copy_beside") for n in names) == 1


@pytest.mark.parametrize("shape", [(1, 2, WIDTH), (2, WIDTH)])
def test_another_view_of_what_is_copied_is_copied_where_it_is_read_first(
    shape: tuple[int, ...],
) -> None:
    """Whatever its dimensions are: the larger concatenation, which comes later, has the array."""

    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        flat = model.emit(relax.op.reshape(x, (2 * WIDTH,)))
        one, other = (model.emit(relax.op.reshape(v, shape)) for v in (x, flat))
        first = model.emit(relax.op.concat([one, other], len(shape) - 2))
        read, second = model.one([first], 1), model.join(x, x, model.one([x], 1))
        return [model.one([model.join(second, read)], 2)]

    made = check(Model(make), 1, 2, WIDTH)
    assert calls(made, "concat") == 0


def test_a_concatenation_that_has_more_of_a_copied_value_lies_elsewhere() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        one = model.cut(x, 0, 1)
        large = model.join(one, model.one([x], 1), x, x)
        return [model.one([large], 1), model.one([model.join(x, x)], 1)]

    check(Model(make), 1, 2, WIDTH)


def test_a_tensor_that_is_joined_twice_lies_in_one_place_only() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        kept = model.run([x], 2, 2)
        for _ in range(3):
            kept.append(model.one([model.join(*kept)], 2))
        return [model.one([kept[-1], model.join(kept[1], kept[0])], 2)]

    made = check(Model(make), 1, 2, WIDTH)
    assert (calls(made, "concat"), calls(made, "strided_slice")) == (1, 2)

    def twice(model: Model, x: relax.Var) -> list[relax.Var]:
        a, b = model.run([x], 2, 1)
        inner = model.join(a, b)
        return [model.one([model.join(inner, inner), model.one([inner], 1)], 2)]

    check(Model(twice), 1, 2, WIDTH)


def test_halves_of_a_result_are_read_and_joined_where_they_are() -> None:
    """As in YOLO's blocks: the second half is read, and both are joined with what follows."""

    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        whole = model.one([x], 4)
        kept = [model.cut(whole, 0, 2), model.cut(whole, 2, 4)]
        for _ in range(2):
            kept.append(model.one([kept[-1]], 2))
        return [model.one([model.join(*kept)], 3)]

    made = check(Model(make), 1, 2, WIDTH)
    assert calls(made, "concat", "strided_slice") == 0
    assert calls(made, "builtin.alloc_tensor") == 1


def test_a_half_that_is_joined_alone_is_copied() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        whole = model.one([x], 4)
        kept = [model.cut(whole, 2, 4)]
        for _ in range(3):
            kept.append(model.one([model.join(*kept)], 2))
        return [model.one([model.join(*kept), whole], 3)]

    made = check(Model(make), 1, 2, WIDTH)
    assert calls(made, "concat", "builtin.alloc_tensor") == 1
    assert calls(made, "strided_slice") == 1


def test_halves_that_are_joined_in_another_order_are_copied() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        whole = model.one([x], 4)
        first, second = model.cut(whole, 0, 2), model.cut(whole, 2, 4)
        kept = [second, first, second, model.one([first], 1)]
        for _ in range(5):
            kept.append(model.one([model.join(*kept)], 2))
        return [model.one([model.join(*kept)], 3)]

    made = check(Model(make), 1, 2, WIDTH)
    assert calls(made, "concat") == 0
    names = [v.name_hint for v, f in made.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert sum(n.startswith("copy_beside") for n in names) == 1


def test_slices_of_what_is_updated_in_place_are_copied_before_it_is() -> None:
    """A kernel that reads a slice runs after an update that the slice was taken before."""

    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        cache = model.emit(relax.op.nn.relu(x))
        old = model.cut(cache, 0, 1)
        name = model.builder.add_func(copying(((1, 2, WIDTH), "float32"), (1, 1, WIDTH), 1, 0), "f")
        held = relax.Tuple([cache, model.cut(cache, 1, 2)])
        new = model.emit(relax.call_tir_inplace(name, held, [0], cache.ty))
        return [model.one([old, model.cut(new, 0, 1)], 2)]

    left(make, 1, 2, WIDTH)
    left(lambda m, x: [m.one([m.cut(x, 1, 2)], 2)], 1, 2, WIDTH)


def test_slices_of_what_stays_are_read_where_they_are() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        relu = model.emit(relax.op.nn.relu(x))
        given = model.cut(relu, 1, 2)
        last = model.emit(relax.op.strided_slice(relu, [-2], [-1], [2**31 - 1], [1]))
        return [model.one([given, last], 2), model.one([model.cut(model.cut(relu, 1, 3), 1, 2)], 1)]

    made = check(Model(make, extent=3), 1, 3, WIDTH)
    assert calls(made, "strided_slice", "builtin.alloc_tensor") == 0


def test_slices_that_are_not_in_one_piece_are_copied() -> None:
    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        cut = relax.op.strided_slice
        every = model.emit(cut(x, [1], [0], [4], [2]))
        columns = model.emit(cut(x, [2], [0], [WIDTH // 2]))
        backwards = model.emit(cut(x, [1], [3], [1], [-1]))
        return [model.one([every, columns, backwards], 2)]

    left(make, 1, 4, WIDTH, extent=4)
    left(lambda m, x: [m.one([m.cut(x, 1, 2)], 2)], 1, 4, 5, extent=4, width=5)


def left(make: Make, *shape: int, **more: Any) -> None:
    """The module is left as it is."""
    model = Model(make, **more)
    assert beside(model.module) is model.module
    assert len(results(model.module, *shape))


def test_left_alone_is_what_would_be_copied_all_the_same() -> None:
    left(lambda m, x: [m.one([m.join(m.one([x], 2), m.emit(relax.op.nn.relu(x)))], 1)],
         1, 2, WIDTH)  # fmt: skip
    left(lambda m, x: [m.join(m.one([x], 2), m.one([x], 1))], 1, 2, WIDTH)

    def viewed(model: Model, x: relax.Var) -> list[relax.Var]:
        joined = model.join(model.one([x], 2), model.one([x], 1))
        return [model.emit(relax.op.reshape(joined, (3 * WIDTH,)))]

    left(viewed, 1, 2, WIDTH)


def test_left_alone_is_what_does_not_lie_in_one_piece_or_not_at_vectors() -> None:
    def pair(model: Model, x: relax.Var) -> list[relax.Var]:
        return [model.one([model.emit(relax.op.concat([model.one([x], 2), x], 2))], 1)]

    left(pair, 1, 2, WIDTH)
    left(lambda m, x: [m.one([m.join(m.one([x], 3), m.one([x], 2))], 1)], 1, 2, 5, width=5)
    turned = relax.op.permute_dims
    left(lambda m, x: [m.emit(turned(m.join(x, m.emit(relax.op.nn.relu(x)))))],
         2, 2, WIDTH, pictures=2)  # fmt: skip


def test_left_alone_is_what_has_run_time_extents() -> None:
    n = tirx.Var("n", "int64")
    left(lambda m, x: [m.emit(relax.op.nn.relu(m.join(x, x)))], 1, 3, WIDTH, extent=n)


def test_the_kernels_of_a_model_write_in_place() -> None:
    """Convolutions that read all before them, as the models of image restoration have them."""
    net = Net()
    kept = [net.op("Conv", net.input("x", 1, 3, 8, 8), net.weight(4, 3, 3, 3), pads=[1] * 4)]
    for i in range(3):
        joined = net.op("Concat", *kept, axis=1) if i else kept[0]
        made = net.op("Conv", joined, net.weight(2, 4 + 2 * i, 3, 3), pads=[1] * 4)
        kept.append(net.op("Relu", made))
    model = net.model(net.op("Conv", net.op("Concat", *kept, axis=1), net.weight(4, 10, 1, 1)))
    loaded = load(model.SerializeToString(), {})
    matches = partition(loaded.module, 100e9, 10e9).matches
    assert len(matches) == 5
    module = install(loaded.module, [naive(m, i) for i, m in enumerate(matches)])
    made = beside(module)
    assert (calls(module, "concat"), calls(made, "concat", "strided_slice")) == (3, 0)
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)
    told = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    for one in (module, made):
        run = relax.VirtualMachine(tvm.compile(one, target="llvm"), tvm.cpu())["main"]
        found = run(tvm.runtime.tensor(x))
        found = found if isinstance(found, tvm.runtime.Tensor) else found[0]
        np.testing.assert_allclose(found.numpy(), told, rtol=1e-4, atol=1e-4)


def naive(match: ChainMatch, index: int) -> Replacement:
    function = primfunc(match.chain, match.shapes, match.starts)
    return Replacement(match, (Installed(f"kernel_{index}", match.chain, function),))


@pytest.mark.thorough
@settings(max_examples=6)
@given(st.data())
def test_any_function_computes_the_same_bits(data: st.DataObject) -> None:
    model = drawn(data)
    made = check(model, 1, 2, WIDTH)
    copies = ("concat", "strided_slice")
    assert calls(made, *copies) <= calls(model.module, *copies)


@pytest.fixture
def launched() -> Iterator[list[Any]]:
    """What a launch passes on: of the driver, which encodes tensor maps, and of a kernel."""
    told = list[Any]()
    names = ("runtime.cuTensorMapEncodeTiled", "tests.beside.kernel")

    def tell(*arguments: Any) -> int:
        told.append([getattr(a, "value", a) for a in arguments])
        return 0

    for name in names:
        tvm.register_global_func(name, tell, override=True)
    yield told
    for name in names:
        remove_global_func(name)


def test_a_launch_is_given_addresses_within_the_array(launched: list[Any]) -> None:
    """As `module.launcher` writes it, with a tensor map and a workspace of its own."""
    lines = [
        "@T.prim_func(s_tir=True, private=True)",
        'def launch(p0: T.Buffer((64, 64), "float16"), p1: T.Buffer((4096,), "float16")):',
        '    with T.sblock("root"):',
        "        T.reads(p0[0:64, 0:64])",
        "        T.writes(p1[0:4096])",
        '        w0 = T.alloc_buffer((32,), "float32")',
        '        m: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)',
        "        T.tensormap_encode_tiled(m, T.handle_add_byte_offset(p0.data, 16), 64, 64, 128, "
        '64, 8, 1, 1, descriptor_dtype="float16", rank=2, swizzle=0, l2_promotion=2)',
        '        T.call_packed("tests.beside.kernel", p0.data, p1.data, w0.data, m)',
    ]
    launch = installed("\n".join(lines))
    made = within_arrays(launch, [((4, 64, 64), "float16")], [(0, 4096), (0, 8192)])
    built = tvm.compile(tvm.IRModule({"main": made.with_attr("global_symbol", "main")}), "llvm")
    array = tvm.runtime.tensor(np.zeros((4, 64, 64), np.float16))
    built["main"](array)
    start = np.from_dlpack(array).ctypes.data
    encoded, called = launched
    assert encoded[3] - start == 2 * 4096 + 16
    assert [at - start for at in called[:2]] == [2 * 4096, 2 * 8192]


@pytest.mark.parametrize(("axis", "first"), [(0, 3), (1, 2), (2, 1)])
def test_a_copy_begins_at_a_position_of_an_axis(axis: int, first: int) -> None:
    extents = [5 if d == axis else n for d, n in enumerate((1, 2, 4))]
    part = [2 if d == axis else n for d, n in enumerate(extents)]
    function = copying((tuple(extents), "float32"), part, axis, first)
    built = tvm.compile(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), "llvm")
    array, copied = np.zeros(extents, np.float32), np.random.rand(*part).astype(np.float32)
    tensors = [tvm.runtime.tensor(a) for a in (array, copied)]
    built["main"](*tensors)
    array[tuple(slice(first, first + 2) if d == axis else slice(None) for d in range(3))] = copied
    np.testing.assert_array_equal(tensors[0].numpy(), array)
