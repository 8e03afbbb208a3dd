"""The walls of the house: what each room may import, and who may read the environment."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import indent

import pytest

from tests.support.dispatch import dispatches, unions
from tests.support.paths import PACKAGES, ROOT
from tests.support.speed import slowness

SOURCES = sorted(p for folder in PACKAGES.values() for p in folder.rglob("*.py"))
VALUES = {"errors", "expr", "chain", "device", "extents"}
SPACE = VALUES | {"algebra", "space"}
LOWERED = SPACE | {"lowering"}
MEASURED = SPACE | {"backend", "measure", "process"}
CODE = LOWERED | {"codegen"}
BACKENDS = MEASURED | CODE | {"model", "backends", "devices", "diagnosis"}
TUNED = BACKENDS | {"search", "tune", "revision", "lock"}
BUILT = TUNED | {"graph", "build", "building"}
COMPILED = BUILT | {"whole", "decide", "resume", "compiled_report", "compile"}

# What a room may import besides itself: rooms of this package, and libraries. Values (errors,
# expr, chain, device) may go anywhere but upstream.
ROOMS: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "revision": (set(), set()),
    "lock": ({"errors"}, {"pydantic"}),
    "signing": ({"errors", "arguments"}, {"cryptography", "pydantic"}),
    "process": ({"errors"}, set()),
    "extents": (set(), set()),
    "arguments": ({"errors", "extents"}, set()),
    "expr": ({"errors"}, set()),
    "chain": ({"errors", "expr"}, set()),
    "device": (set(), set()),
    "devices": ({"errors", "device"}, {"numpy", "tvm", "tvm_ffi"}),  # times, asks LLVM for the CPU
    "algebra": (VALUES, {"sympy"}),
    "space": (VALUES | {"algebra"}, {"numpy"}),
    "lowering": (SPACE, {"numpy"}),
    "model": (LOWERED | {"devices"}, {"numpy"}),
    "backend": (SPACE, set()),
    "search": (SPACE, {"numpy"}),
    # codegen obeys what statements say: it looks for no operator, so it needs no algebra
    "codegen": (
        (LOWERED | {"process"}) - {"algebra"}, {"numpy", "tvm", "tvm_ffi", "triton", "nvidia"},
    ),
    "measure": (SPACE | {"backend", "process"}, {"numpy", "platformdirs"}),
    "backends": (BACKENDS, {"cuda", "ml_dtypes", "numpy", "tvm"}),
    "tune": (TUNED, {"numpy", "tvm"}),  # asks TVM for its LLVM
    "runtime": (set(), {"ml_dtypes", "numpy", "tvm", "tvm_ffi"}),
    "graph": (
        VALUES | {"devices", "measure", "process", "runtime"},
        {"google", "ml_dtypes", "numpy", "onnx", "onnxruntime", "tvm", "tvm_ffi"},
    ),
    "building": (SPACE | {"backend"}, set()),
    "build": (BUILT, {"numpy", "tvm"}),
    "whole": (BUILT, set()),
    "decide": (BUILT | {"whole"}, set()),
    "resume": (BUILT | {"decide"}, set()),
    "compiled_report": (BUILT, set()),
    "compile": (COMPILED, {"numpy"}),
    "bisect": (COMPILED, {"numpy", "onnx", "tvm"}),
    "explain": (COMPILED, {"tvm"}),
    "derivation": (SPACE, set()),
    "diagnosis": (set(), set()),
    "doctor": (
        COMPILED | {"bisect", "diagnosis", "process"}, {"numpy", "onnx", "packaging", "tvm"},
    ),
    "table": (set(), {"rich"}),
    "finite": (set(), set()),
    "report": (COMPILED | {"bisect", "derivation", "explain", "table"}, {"rich"}),
    "batch": (
        VALUES | {"process", "arguments", "revision", "backends", "devices", "measure",
         "lock"},
        {"google", "httpx", "onnx", "pydantic"},
    ),
    "cli": (
        COMPILED
        | {"arguments", "batch", "bisect", "db", "derivation", "doctor", "explain", "diagnosis",
           "finite", "process", "report", "revision", "service", "signing", "table"},
        {"rich", "typer"},
    ),
    "db": (VALUES | {"tune"}, {"sqlalchemy", "alembic"}),
    "service": (
        COMPILED | {"arguments", "bisect", "db", "finite", "process", "revision", "signing"},
        {"fastapi", "starlette", "uvicorn", "pydantic", "pydantic_settings", "prometheus_client",
         "platformdirs", "anyio", "httpx", "oras", "requests"},
    ),
}  # fmt: skip

# Lazily, inside a function, so that a room stays light: where these libraries may be imported.
LAZY = {
    "sympy": {"algebra"},
    "tvm": {"tune", "devices"},
    "tvm_ffi": {"devices"},
    "numpy": {"devices"},
}

READERS = {
    "service/mcfuser_service/settings.py": "settings are read from the environment here",
    "mcfuser/process/supervised.py": "hands its own environment on to every child process",
}


def room(path: Path) -> str:
    name, folder = next((n, f) for n, f in PACKAGES.items() if path.is_relative_to(f))
    if name != "mcfuser":
        return name.removeprefix("mcfuser_")
    first = path.relative_to(folder).with_suffix("").parts[0]
    return first if first != "__init__" else ""


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def walked(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(text)))


def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's tree."""
    return walked(path.read_text())


def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """Every module that a file imports, and whether it does so as it is loaded."""
    assert not any(isinstance(n, ast.ImportFrom) and n.level for n in nodes(path)), (
        f"{path}: imports are absolute here"
    )
    return _imports(path.read_text())


@cache
def _imports(text: str) -> tuple[tuple[str, bool], ...]:
    return tuple(_found(walked(text)))


def _found(every: tuple[ast.AST, ...]) -> Iterator[tuple[str, bool]]:
    late = {
        id(inner)
        for node in every
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for inner in ast.walk(node)
    }
    for node in every:
        if isinstance(node, ast.Import):
            yield from ((a.name, id(node) not in late) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            for a in node.names:
                yield f"{node.module}.{a.name}", id(node) not in late


def target(module: str) -> tuple[str, bool]:
    """The room of a module of ours, or the name of a library."""
    top, *rest = module.split(".")
    if top == "mcfuser":
        return (rest[0] if rest else ""), True
    return (top.removeprefix("mcfuser_"), True) if top in PACKAGES else (top, False)


def checked(path: Path) -> object:
    return pytest.param(path, id=str(path.relative_to(ROOT)))


@pytest.mark.parametrize("path", [checked(p) for p in SOURCES])
def test_every_import_points_downstream(path: Path) -> None:
    here = room(path)
    if not here:
        assert not list(imports(path))
        return
    assert here in ROOMS, f"room '{here}' is new: say above what it may import"
    rooms, libraries = ROOMS[here]
    for module, early in imports(path):
        name, ours = target(module)
        if ours:
            assert name in rooms | {here, ""}, f"{here} imports {module}"
        elif name not in sys.stdlib_module_names:
            assert name in libraries, f"{here} imports {module}"
            assert not early or here not in LAZY.get(name, set()), f"{module} as {here} is loaded"


def test_imports_between_rooms_have_no_cycle() -> None:
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        ours = {name for name, known in (target(m) for m, _ in imports(path)) if known}
        found.setdefault(room(path), set()).update(ours - {room(path), ""})
    assert len(list(graphlib.TopologicalSorter(found).static_order())) >= len(ROOMS)


@pytest.mark.parametrize("room", ["space", "lowering", "model", "search"])
def test_what_comes_before_code_knows_no_code_generator(room: str) -> None:
    for path in (ROOT / "mcfuser" / room).rglob("*.py"):
        for module, _ in imports(path):
            name, _ = target(module)
            assert name not in {"codegen", "tvm", "triton"}, f"{path} imports {module}"


def test_models_and_code_generators_do_not_know_each_other() -> None:
    for room, other in (("model", "codegen"), ("codegen", "model"), ("lowering", "model")):
        for path in (ROOT / "mcfuser" / room).rglob("*.py"):
            assert all(target(module)[0] != other for module, _ in imports(path)), path


def test_only_the_command_knows_storage_and_service() -> None:
    rooms = {
        room(path)
        for path in (ROOT / "mcfuser").rglob("*.py")
        for module, _ in imports(path)
        if target(module)[0] in ("db", "service")
    }
    assert rooms == {"cli"}


def reads_environment(path: Path) -> bool:
    """It mentions os.environ or os.getenv other than to set a variable."""
    every = nodes(path)
    written = {
        id(node.value)
        for node in every
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    words = {"environ", "environb", "getenv", "getenvb", "expandvars"}
    for node in every:
        if isinstance(node, ast.Attribute) and node.attr in words and id(node) not in written:
            return True
        if isinstance(node, ast.ImportFrom) and words & {a.name for a in node.names}:
            return True
    return False


def test_only_the_settings_read_the_environment() -> None:
    found = {str(p.relative_to(ROOT)) for p in SOURCES if reads_environment(p)}
    assert found <= set(READERS), found - set(READERS)


def test_the_search_for_environment_reads_finds_them(tmp_path: Path) -> None:
    for text, expected in [
        ("import os\nx = os.environ['A']", True),
        ("import os\nx = os.environ.get('A')", True),
        ("import os\nx = os.getenv('A')", True),
        ("from os import environ", True),
        ("import os\nf(env={**os.environ})", True),
        ("import os\nos.environ['A'] = 'b'", False),
        ("import os\nx = os.getcwd()", False),
    ]:
        (tmp_path / "m.py").write_text(text)
        assert reads_environment(tmp_path / "m.py") is expected, text


STARTERS = {
    "mcfuser/process/supervised.py": "starts every process of mcfuser's own",
    "mcfuser/process/forkserver.py": "forks those that share what one of them has loaded",
}
TOOLS = {
    "mcfuser/backends/cuda/backend.py": "asks ptxas for its version",
    "mcfuser/codegen/cuda/cubin.py": "asks cuobjdump what a kernel uses",
    "mcfuser/codegen/cuda/build.py": "calls the C compiler for a library that stands in for CUDA's",
}
STARTING = {
    "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.posix_spawnp", "os.system",
    "os.popen", "concurrent.futures.ProcessPoolExecutor", "multiprocessing.Process",
    "multiprocessing.Pool", "multiprocessing.get_context",
}  # fmt: skip


def names(path: Path) -> set[str]:
    """All that a file imports, and every attribute of a name that it uses, with a dot."""
    used = {module for module, _ in imports(path)}
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add(f"{node.value.id}.{node.attr}")
    return used


def test_processes_are_started_in_one_room() -> None:
    """Other programs' tools, which are waited for, may be called with subprocess.run elsewhere."""
    used = {str(p.relative_to(ROOT)): names(p) for p in SOURCES}
    assert {path for path, found in used.items() if found & STARTING} == set(STARTERS)
    tools = {path for path, found in used.items() if "subprocess" in found}
    assert tools - set(STARTERS) == set(TOOLS)


def test_no_module_reassigns_what_belongs_to_the_whole_process() -> None:
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                assert node.attr != "tempdir", path
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                assert "sys.modules" not in ast.unparse(node), path


def public_types(path: Path) -> Iterator[str]:
    """The classes and the type aliases that a module defines for others."""
    for node in parsed(path.read_text()).body:
        name = ""
        if isinstance(node, ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        if re.fullmatch(r"[A-Z][A-Z0-9]*[a-z]\w*", name):  # constants have capitals alone
            yield name


def test_every_public_type_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for name in public_types(path):
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    repeated = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert repeated == {}


def test_the_search_for_public_types_finds_classes_and_aliases(tmp_path: Path) -> None:
    text = (
        "class A1b: ...\nPair = tuple[int, int]\nMode: object = int\nLIMIT = 3\n_Own = int\nx = 1\n"
    )
    (tmp_path / "m.py").write_text(text)
    assert list(public_types(tmp_path / "m.py")) == ["A1b", "Pair", "Mode"]


UNIONS = {
    **unions(PACKAGES["mcfuser"] / "space" / "statement.py", "Statement", "SimpleStatement"),
    **unions(PACKAGES["mcfuser"] / "expr.py", "Expr"),
    **unions(PACKAGES["mcfuser"] / "process" / "messages.py", "Message"),
}
"""The unions of kinds of values that the rooms dispatch on, and their members."""


def dispatched(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Where more than half of the members of a union are told apart: the line, the union, and
    whether the dispatch ends in assert_never. What picks fewer asks for these alone."""
    for found in dispatches(tree, UNIONS):
        for name in ("Statement", "Expr", "Message"):
            if len(found.named & UNIONS[name]) * 2 > len(UNIONS[name]):
                yield found.line, name, found.end == "assert_never"


def test_a_dispatch_on_kinds_of_values_ends_in_assert_never() -> None:
    """A kind that is added to a union is then an error of mypy's wherever it is forgotten."""
    seen, wrong = set[str](), []
    for path in SOURCES:
        for line, union, closed in dispatched(parsed(path.read_text())):
            seen.add(union)
            if not closed:
                wrong.append(f"{path.relative_to(ROOT)}:{line} tells kinds of {union} apart")
    assert wrong == []
    assert seen == {"Statement", "Expr", "Message"}, "the search has not found what there is"


RETURNS = """
def f(e):
    if isinstance(e, Const | Index):
        return 1
    if isinstance(e, Read):
        return 2
"""
ELIFS = """
if isinstance(e, (Const, Index)):
    x = 1
elif isinstance(e, Read):
    x = 2
"""
CASES = """
match e:
    case Const() | Index():
        x = 1
    case Read(tensor=t) if t:
        x = 2
    case Cast():
        x = 3
"""


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        (RETURNS, [False]),
        (RETURNS + "    return 3\n", [False]),
        (RETURNS + "    assert_never(e)\n", [True]),
        (
            RETURNS + "    if not isinstance(e, Call):\n        assert_never(e)\n    return 3\n",
            [True],
        ),
        (RETURNS + "    if not isinstance(e, Call):\n        return 3\n    return 4\n", [False]),
        (RETURNS.replace("isinstance(e, Read)", "isinstance(d, Read)"), []),
        (ELIFS, [False]),
        (ELIFS + "else:\n    x = 3\n", [False]),
        (ELIFS + "else:\n    assert_never(e)\n", [True]),
        (ELIFS + "elif not isinstance(e, Cast):\n    assert_never(e)\n", [True]),
        (ELIFS + "assert_never(e)\n", [False]),
        (ELIFS.replace("Index", "str"), []),
        (CASES, [False]),
        (CASES + "    case _:\n        x = 4\n", [False]),
        (CASES + "    case _:\n        assert_never(e)\n", [True]),
        (CASES.replace(" | Index()", ""), []),
        ("class C:\n  def f(self, s):\n    for e in s:\n" + indent(ELIFS, "      "), [False]),
    ],
)
def test_the_search_for_dispatches_finds_them_all(text: str, closed: list[bool]) -> None:
    assert [end for _, _, end in dispatched(ast.parse(text))] == closed


HEAVY = ("tvm", "tvm_ffi", "triton", "torch", "sympy", "onnx", "onnxruntime", "sqlalchemy")


@pytest.mark.parametrize(
    "module",
    [
        "mcfuser.chain",
        "mcfuser.space.prune",
        "mcfuser.lowering.triton.hopper.groups",
        "mcfuser.model.roofline",
        "mcfuser.model.fitted",
        "mcfuser.search.evolve",
    ],
)
def test_the_light_rooms_load_at_once_and_alone(module: str) -> None:
    code = (
        "import sys, time; start = time.process_time(); "
        f"import {module}; seconds = time.process_time() - start; "
        f"print(seconds, *[m for m in {HEAVY!r} if m in sys.modules])"
    )

    def loaded_at_once() -> bool:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        seconds, *heavy = done.stdout.decode().split()
        assert heavy == []
        return float(seconds) < 0.5 * slowness()

    assert any(loaded_at_once() for _ in range(8)), "even where a neighbour has the other thread"


KINDS_ARE_NAMED_IN = {"backends", "devices", "lowering", "codegen", "runtime"}


def test_no_kind_of_device_is_named_elsewhere() -> None:
    """A back end more adds files there and changes none elsewhere."""
    named = re.compile(r"cpu|cuda|nvidia(/\w+)?|sm_\d+")
    wrong = []
    for path in SOURCES:
        if room(path) in KINDS_ARE_NAMED_IN:
            continue
        for node in nodes(path):
            words = node.value if isinstance(node, ast.Constant) else None
            if isinstance(words, str) and named.fullmatch(words):
                wrong.append(f"{path.relative_to(ROOT)} {words!r}")
    assert wrong == []
