"""Every path and every dotted name of this project in the documents exists in the tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import PACKAGES, ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TOPS = ("mcfuser", "db", "service", "deploy", "tests", "benchmarks", "examples", "docs")
INSIDE = [p for p in (ROOT / "mcfuser").iterdir() if not p.stem.startswith("__")]
ROOMS = {p.stem for p in INSIDE}
FOLDERS = {*TOPS, *(p.name for p in INSIDE if p.is_dir())}
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)#\s]+)")
PATH = re.compile(
    r"(?<![\w./<-])[\w*.-]+(?:/[\w*.-]+)*(?:\.(?:py|toml|json|md|yaml|service)|/)(?:::\w+)?"
)
DOTTED = re.compile(r"(?<![\w./:-])[A-Za-z_]\w*(?:\.\w+)+(?![\w(]*/)")
SUFFIXES = ("py", "toml", "json", "md", "yaml", "xml", "so", "onnx", "data", "txt", "db", "html")
FOREIGN = {"Schedule.tensorize", "session.x64quantprecision"}
"""Names of TVM's and onnxruntime's whose first part is a name of ours as well."""


@cache
def tree() -> tuple[Path, ...]:
    """Every file of the checkout that is not hidden or built."""
    found = [ROOT / "README.md", *ROOT.glob("*.toml")]
    for top in TOPS:
        found += [p for p in (ROOT / top).rglob("*") if p.suffix != ".pyc"]
    return tuple(found)


def exists(path: str) -> bool:
    """A path of the checkout, or of the package; a bare file name is any file's. A name after two
    colons is defined in the file."""
    path, _, name = path.partition("::")
    if "/" not in path.rstrip("/") and not path.endswith("/"):
        found = [p for p in tree() if p.match(path)]
    else:
        found = [p for base in (ROOT, ROOT / "mcfuser") for p in base.glob(path.rstrip("/"))]
    if name:
        found = [p for p in found if name in defined(p)]
    return bool(found)


@cache
def defined(path: Path) -> frozenset[str]:
    """The names that a module defines, and `Class.attribute` of its classes."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        names = set(bound(node))
        found |= names
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner}" for n in node.body for inner in bound(n)}
    return frozenset(found)


def bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name
    elif isinstance(node, ast.AnnAssign):
        yield from (n.id for n in ast.walk(node.target) if isinstance(n, ast.Name))
    elif isinstance(node, ast.ImportFrom):
        yield from (a.asname or a.name for a in node.names)
    elif isinstance(node, ast.Assign):
        yield from (n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name))


def resolves(parts: list[str]) -> bool:
    """A package or module of the checkout, and what it defines."""
    at, rest = PACKAGES.get(parts[0], ROOT / parts[0]).parent, list(parts)
    while rest and (at / rest[0]).is_dir():
        at, rest = at / rest[0], rest[1:]
    module = at / f"{rest[0]}.py" if rest else None
    if module is not None and module.is_file():
        rest = rest[1:]
    else:
        module = at / "__init__.py"
    return not rest or (module.is_file() and ".".join(rest) in defined(module))


@cache
def modules() -> dict[str, list[Path]]:
    """The modules of the packages by the last part of their names."""
    found: dict[str, list[Path]] = {}
    for path in tree():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] != "tests":
            found.setdefault(path.stem, []).append(path)
    return found


@cache
def attributes() -> dict[str, frozenset[str]]:
    """The attributes of this project's classes, by the class' name."""
    found: dict[str, set[str]] = {}
    for path in (p for some in modules().values() for p in some):
        for name in defined(path):
            owner, _, attribute = name.partition(".")
            if owner[:1].isupper() and not owner.isupper():
                found.setdefault(owner, set()).add(attribute)
    return {name: frozenset(some) for name, some in found.items()}


def known(name: str) -> bool | None:
    """Whether a dotted name exists; None where it is none of this project's."""
    parts = name.split(".")
    if name in FOREIGN or parts[-1] in SUFFIXES:
        return None
    if parts[0] in PACKAGES or parts[0] in TOPS:
        return resolves(parts)
    if parts[0] in ROOMS:
        return resolves(["mcfuser", *parts])
    if parts[0] in attributes() and len(parts) == 2:
        return parts[1] in attributes()[parts[0]]
    if parts[0] in modules():
        return any(".".join(parts[1:]) in defined(path) for path in modules()[parts[0]])
    return None


def wrong(text: str, folder: Path) -> Iterator[str]:
    """What a document names that does not exist: in its code spans, and where its links lead."""
    text = re.sub(r"<!-- begin .*?<!-- end -->", "", text, flags=re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for link in LINK.findall(prose):
        if "://" not in link and not (folder / link).exists():
            yield link
    for code in (c for paragraph in prose.split("\n\n") for c in CODE.findall(paragraph)):
        for path in PATH.findall(code):
            ours = path.split("/")[0] in FOLDERS or path.endswith(".py")
            if ours and "://" not in code and not exists(path):
                yield path
        for name in DOTTED.findall(PATH.sub(" ", code)):
            if known(name) is False:
                yield name
    for command in re.findall(r"python (?:-m )?([\w./]+)", text):
        there = exists(command) if "/" in command else known(command)
        if there is False:
            yield command


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_name_in_a_document_exists(document: Path) -> None:
    assert sorted(set(wrong(document.read_text(), document.parent))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`mcfuser/space/prune.py`, `space/prune.py` and `prune.py` and `codegen/*/record.py`", []),
        ("`mcfuser/foresee.py` and `cache_key.py`", ["mcfuser/foresee.py", "cache_key.py"]),
        ("`space.prune.RULES`, `mcfuser.space.prune`, `Groups.late`, `tvm.ir.save_json`", []),
        ("`space.prune.LAWS`", ["space.prune.LAWS"]),
        ("`model.loops` and `bench.workloads`", ["model.loops"]),
        ("`WarpGroups.early` and `knobs.knot`", ["WarpGroups.early", "knobs.knot"]),
        ("a span `over two\nlines` and then `mcfuser/tune.py`", ["mcfuser/tune.py"]),
        ("`tests/test_expr.py::test_no_such`", ["tests/test_expr.py::test_no_such"]),
        ("run `python benchmarks/cpu.py` or `python -m mcfuser_service.worker`", []),
        ("run `python benchmarks/bench.py`", ["benchmarks/bench.py"] * 2),
        ("[there](README.md), [not there](nowhere.md)", ["nowhere.md"]),
        ("`zoo.toml`, `report/`, `sqlite:///x/mcfuser.db`, `POST /v1/jobs`", []),
    ],
)
def test_what_does_not_exist_is_found(text: str, found: list[str]) -> None:
    assert list(wrong(text, ROOT)) == found
