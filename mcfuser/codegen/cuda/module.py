"""Cubins inside a TVM module: the functions that launch them, and the build for an NVIDIA GPU.

TVM makes a module with binaries only in a process that has the CUDA runtime and a CUDA driver;
without them it silently embeds source. So the build runs in a process of its own (`build`),
which brings the runtime along and stands in for the driver where the machine has none.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from mcfuser.chain import BYTES, NO_STARTS
from mcfuser.codegen import apart
from mcfuser.codegen.apart import ApartConstants, Content, content
from mcfuser.codegen.cuda.build import MAP, found_in, places
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.kernel import SourceKernel
from mcfuser.codegen.cuda.operators import only_on_host, with_operators
from mcfuser.codegen.cuda.recurrence import with_kernels
from mcfuser.codegen.cuda.suppress import with_suppression_kernels
from mcfuser.codegen.script import prim_func
from mcfuser.codegen.triton import Launch, TensorMap, TritonSource, Workspace
from mcfuser.device import Device
from mcfuser.errors import DeviceError
from mcfuser.lowering.triton.hopper.tensor_map import SWIZZLES
from mcfuser.process.command import run_command
from mcfuser.space.statement import Illegal

NEEDED = ("cuda.bindings", "nvidia.cu13")
"""What the optional dependencies `gpu` install: NVIDIA's compiler, runtime and headers."""
LARGE = 1 << 16
"""Constants of more bytes than this are saved to files: as text of a module they take seconds."""
APART = 1 << 28
"""Bytes of a module's constants from which on those of more than `apart.LARGE` are behind it in its
file (mcfuser.codegen.apart): inside, a gigabyte takes 12 to 25 s of its build, and twice its memory
when it is loaded. Below, calls that give them are not worth while: a run has one for each."""
LONGEST = 3600.0
"""Seconds that a build may take; one of thousands of kernels takes a minute."""
L2_LINE = 2
"""The driver's number for 128 bytes, which a copy brings into the cache at least."""


@dataclass(frozen=True, slots=True)
class CubinKernel:
    """A cubin as a module calls it: its functions by name with the types of what they take, and
    `shared` bytes a block, and whether they are `dependent` (TritonSource)."""

    functions: tuple[tuple[str, tuple[str, ...]], ...]
    cubin: bytes
    shared: int
    dependent: bool

    kind = "cubin"

    @property
    def name(self) -> str:
        """The first function's."""
        return self.functions[0][0]

    @property
    def content(self) -> bytes:
        """What the build reads of it."""
        return self.cubin


def kernel(source: TritonSource, binary: Binary) -> CubinKernel:
    """The last two arguments are Triton's scratch pointers, which are null."""
    functions = tuple((launch.name, _types(launch)) for launch in source.launches)
    return CubinKernel(functions, binary.cubin, binary.shared, source.dependent)


def _types(launch: Launch) -> tuple[str, ...]:
    types = ["handle"] * len(launch.arguments)
    for m in launch.maps:
        types += [MAP, *["int32"] * len(m.shape), *["int64"] * len(m.strides)]
    return (*types, "int64", "int64")


def counters(source: TritonSource) -> tuple[Workspace, ...]:
    """The workspaces that hold zeros between launches: constants of the module that calls."""
    return tuple(w for w in source.workspace if w.zero)


def launcher(
    source: TritonSource,
    binary: Binary,
    shapes: Mapping[str, tuple[int, ...]],
    starts: Mapping[str, int] = NO_STARTS,
) -> tvm.tirx.PrimFunc:
    """A function that launches the kernels on tensors of these physical shapes, by parameter, in
    which the kernels' arrays begin at the elements `starts`.

    It takes the chain's inputs, the counters, and the chain's outputs; the workspace is its own.
    Raises Illegal where an extent is known at run time only: graphs have numbers.
    """
    return prim_func(launcher_text(source, binary, shapes, starts))


def launcher_text(
    source: TritonSource,
    binary: Binary,
    shapes: Mapping[str, tuple[int, ...]],
    starts: Mapping[str, int] = NO_STARTS,
) -> str:
    """The function's TVMScript, which allocates the workspace until its callers pass it
    (mcfuser.codegen.cuda.workspaces)."""
    if missing := [a for launch in source.launches for a in launch.extents]:
        raise Illegal(f"axis '{missing[0]}' has an extent that is known at run time only")
    inputs = source.parameters[: -source.written]
    known = dict(shapes) | {w.name: (w.size,) for w in source.workspace}
    order = [*inputs, *(w.name for w in counters(source)), *source.parameters[-source.written :]]
    names = {t: f"p{i}" for i, t in enumerate(order)}
    buffers = [f"{p}: T.Buffer({known[t]!r}, {source.dtype_of[t]!r})" for t, p in names.items()]
    regions = {t: f"{p}[{', '.join(f'0:{n}' for n in known[t]) or '()'}]" for t, p in names.items()}
    written = [regions[t] for t in order[len(inputs) :]]
    own = [w for w in source.workspace if not w.zero]
    names |= {w.name: f"w{i}" for i, w in enumerate(own)}
    first = {t: n * BYTES[source.dtype_of[t]] for t, n in starts.items()}
    data = {t: _at_byte(f"{p}.data", first.get(t, 0)) for t, p in names.items()}
    return "\n".join(
        [
            "@T.prim_func(s_tir=True, private=True)",
            f"def {source.name}({', '.join(buffers)}):",
            '    T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8})',
            '    with T.sblock("root"):',
            f"        T.reads({', '.join(regions[t] for t in order[: -source.written])})",
            f"        T.writes({', '.join(written)})",
            *(f"        {names[w.name]} = {_allocation(w)}" for w in own),
            *(f"        {line}" for one in source.launches for line in _lines(one, binary, data)),
        ]
    )


def _allocation(w: Workspace) -> str:
    return f"T.alloc_buffer(({w.size},), {w.dtype!r})"


def _at_byte(address: str, start: int) -> str:
    """The address of the byte `start` behind an address."""
    return f"T.handle_add_byte_offset({address}, {start})" if start else address


def _lines(launch: Launch, binary: Binary, data: Mapping[str, str]) -> list[str]:
    """The tensor maps, which last until the function ends, and the call, given the addresses of all
    arrays. The two zeros are Triton's scratch pointers, which it has no use for; what follows are
    the launch parameters of `build.TAGS`."""
    lines: list[str] = []
    arguments = [data[t] for t in launch.arguments]
    for i, m in enumerate(launch.maps):
        name = f"{launch.name}_map_{i}"
        lines += [
            f'{name}: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)',
            f"T.tensormap_encode_tiled({name}, {_described(m, data[m.tensor])})",
        ]
        arguments += [name, *map(str, m.shape), *(f"T.int64({n})" for n in m.strides)]
    shared = [binary.shared] if binary.shared else []
    grid = [str(n) for n in (binary.threads, *launch.blocks({}), *shared)]
    words = ", ".join([*arguments, *["T.int64(0)"] * 2, *grid])
    return [*lines, f'T.call_packed("{launch.name}", {words})']


def _described(m: TensorMap, base: str) -> str:
    """What the driver is told of a tensor map: dimensions, innermost first, strides in bytes, the
    box and its steps."""
    size = BYTES[m.dtype]
    numbers = [
        *reversed(m.shape), *(n * size for n in reversed(m.strides[:-1])), *reversed(m.part),
        *(1 for _ in m.box),
    ]  # fmt: skip
    facts = f"descriptor_dtype={m.dtype!r}, rank={len(m.box)}"
    facts += f", swizzle={SWIZZLES.index(m.swizzle)}, l2_promotion={L2_LINE}"
    return f"{_at_byte(base, m.start)}, {', '.join(map(str, numbers))}, {facts}"


Attached = CubinKernel | SourceKernel
"""A kernel that is part of a module."""


def build(
    module: tvm.IRModule, device: Device, kernels: Sequence[CubinKernel]
) -> bytes | mmap.mmap:
    """The shared library, which may be mapped, of a Relax module whose functions launch these
    kernels, and those of its recurrences, suppressions and of `OPERATORS`.

    No GPU is needed. Raises DeviceError where no GPU computes the module, where NVIDIA's packages
    are missing, or where its compiler or TVM refuse the module; ValueError for two kernels of one
    name.
    """
    if (why := refusal(module)) is not None:
        raise DeviceError(f"device '{device.name}' {why}")
    module, loops = with_kernels(module, device)
    module, choices = with_suppression_kernels(module, device)
    module, others = with_operators(module)
    every: tuple[Attached, ...] = tuple(dict.fromkeys((*kernels, *loops, *choices, *others)))
    names = [name for k in every for name, _ in k.functions]
    if len(set(names)) < len(names):
        raise ValueError("two kernels of one name; a module finds its kernels by name")
    if (why := lacking()) is not None:
        raise DeviceError(f"no module for device '{device.name}' can be built: {why}")
    with tempfile.TemporaryDirectory(prefix="mcfuser-") as name:
        folder = Path(name)
        behind = _write(folder, module, device, every)
        death = run_command(
            "mcfuser.codegen.cuda.build",
            [str(folder)],
            folder / "printed",
            folder / "said",
            LONGEST,
        )
        if death is not None:
            why = f"it took longer than {LONGEST:g} s" if death.why == "time" else death.telling
            raise DeviceError(
                f"the module for device '{device.name}' cannot be built: {why or death.manner}"
            )
        if not behind.constants:
            return (folder / "module.so").read_bytes()
        behind.append(folder / "module.so")
        with (folder / "module.so").open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def refusal(module: tvm.IRModule) -> str | None:
    """Why no GPU runs a model, to be read after its name; None where nothing is known to speak
    against it."""
    operator = only_on_host(module)
    if operator is None:
        return None
    return (
        f"cannot run the model: its {operator} finds as many elements as there are, which TVM "
        "computes in a host's memory only; compile it for a CPU, or export the model without it"
    )


def lacking() -> str | None:
    """What of NVIDIA's packages a module cannot be built without; None where nothing is missing."""
    for name in NEEDED:
        if not _installed(name):
            return (
                f"package {name} is not installed; install mcfuser with its gpu extra: pip install "
                "'mcfuser[gpu]'"
            )
    try:
        found_in(places())
    except FileNotFoundError as error:
        return str(error)
    return None


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _write(
    folder: Path,
    module: tvm.IRModule,
    device: Device,
    kernels: Sequence[Attached],
) -> ApartConstants:
    """What the build reads: the module, its large constants, the cubins; and the constants that are
    to be appended to what it makes."""
    light, constants = lift_constants(module)
    (folder / "module.json").write_text(tvm.ir.save_json(light))
    behind = ApartConstants()
    numbers = {n: _number(behind, constants[n]) for n in _apart(light, constants)}
    if numbers:
        (folder / "apart.c").write_text(behind.source(copied=True))
    inside = {n: constant.array for n, constant in constants.items() if n not in numbers}
    for constant, array in inside.items():
        stored = array.view(np.uint16) if str(array.dtype) == "bfloat16" else array
        np.save(folder / f"{constant}.npy", stored, allow_pickle=False)
    for k in kernels:
        (folder / f"{k.name}.{k.kind}").write_bytes(k.content)
    order = {
        "arch": device.arch,
        "constants": {name: str(array.dtype) for name, array in inside.items()},
        "apart": numbers,
        "kernels": [
            {
                "name": k.name,
                "functions": k.functions,
                "shared": k.shared,
                "dependent": k.dependent,
            }
            for k in kernels
        ],
    }
    (folder / "build.json").write_text(json.dumps(order))
    return behind


def _apart(module: tvm.IRModule, constants: Mapping[str, LiftedConstant]) -> list[str]:
    """Which of the constants that `main` takes are to be behind the library: the large ones of many
    bytes in all, but for those that it returns, to which its caller may write. A module without
    inputs has none, as these say on which device it runs."""
    main = module["main"]
    results = main.body.body.fields if isinstance(main.body.body, relax.Tuple) else [main.body.body]
    returned = {v.name for v in results if isinstance(v, relax.Var)}
    sizes = {n: constant.array.nbytes for n, constant in constants.items()}
    if len(main.params) == len(constants) or sum(sizes.values()) < APART:
        return []
    return [n for n, size in sizes.items() if size > apart.LARGE and n not in returned]


def _number(among: ApartConstants, constant: LiftedConstant) -> int:
    """The number of a constant among those that are kept apart."""
    return among.number(constant.content, _octets(constant.array))


@dataclass(frozen=True, slots=True)
class LiftedConstant:
    """The array of a large constant, and what tells it from others."""

    array: Any
    content: Content


def lift_constants(module: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, LiftedConstant]]:
    """The module with its large constants as last parameters of `main`, and these by name.

    Functions that `main` calls take theirs from it; what several of them have is there once.
    """
    functions = dict(module.functions)
    lifted = _Lifted({v.name for v in module["main"].params})
    given: dict[str, _Given] = {}
    for variable, function in module.functions.items():
        name = variable.name_hint
        if isinstance(function, relax.Function) and name != "main":
            lifter = _Lifter(lifted, {})
            body, parameters = lifter.visit_expr(function), tuple(lifter.parameters.values())
            if parameters:
                made = _with_parameters(body, parameters)
                given[name] = _Given(tvm.ir.GlobalVar(name), parameters)
                relax.expr._update_type(given[name].variable, made.ty)
                del functions[variable]
                functions[given[name].variable] = made
    lifter = _Lifter(lifted, given)
    main = lifter.visit_expr(module["main"])
    parameters = tuple(lifter.parameters.values())
    functions[module.get_global_var("main")] = _with_parameters(main, parameters)
    light = tvm.IRModule(functions, attrs=module.attrs)
    return light, {v.name: lifted.constants[v.name] for v in parameters}


@dataclass(frozen=True, slots=True)
class _Given:
    """A function's variable, and the parameters that it takes in addition to its own."""

    variable: tvm.ir.GlobalVar
    parameters: tuple[relax.Var, ...]


def _with_parameters(function: relax.Function, added: Sequence[relax.Var]) -> relax.Function:
    return relax.Function(
        [*function.params, *added], function.body, function.ret_ty, function.is_pure,
        function.attrs,
    )  # fmt: skip


@dataclass
class _Lifted:
    """The large constants of a module by the names of their parameters; `taken` are other names."""

    taken: set[str]
    constants: dict[str, LiftedConstant] = field(default_factory=dict)
    names: dict[Content, str] = field(default_factory=dict)

    def name(self, array: Any) -> str:
        """The name of a constant; equal ones have the same."""
        key = content(_octets(array), tuple(array.shape), str(array.dtype))
        if key not in self.names:
            name = f"constant_{len(self.constants)}"
            while name in self.taken:
                name += "_"
            self.names[key], self.constants[name] = name, LiftedConstant(array, key)
        return self.names[key]


def _octets(array: Any) -> NDArray[np.uint8]:
    """The bytes of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@relax.expr_functor.mutator
class _Lifter(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces every large constant by a parameter, and passes on to functions what is `given` to
    them."""

    def __init__(self, lifted: _Lifted, given: Mapping[str, _Given]) -> None:
        super().__init__()
        self.lifted, self.given = lifted, given
        self.parameters: dict[str, relax.Var] = {}

    def visit_generic_const_(self, constant: Any) -> Any:
        array = constant.value.numpy()
        if array.nbytes <= LARGE:
            return constant
        return self._parameter(self.lifted.name(array), constant.ty)

    def visit_call_(self, call: relax.Call) -> relax.Call:
        made = super().visit_call_(call)
        wanted = (
            self.given.get(call.op.name_hint) if isinstance(call.op, tvm.ir.GlobalVar) else None
        )
        if wanted is None:
            return made
        passed = [self._parameter(v.name, v.ty) for v in wanted.parameters]
        return relax.Call(
            wanted.variable, [*made.args, *passed], made.attrs, made.ty_args, made.span
        )

    def _parameter(self, name: str, kind: Any) -> relax.Var:
        if name not in self.parameters:
            self.parameters[name] = relax.Var(name, kind)
        return self.parameters[name]
