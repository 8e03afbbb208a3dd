"""docs/architecture.md shows what the rooms print today, and names all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from architecture import BLOCK, PAGE, page
from tests.support.paths import ROOT

TEXT = PAGE.read_text()


def test_the_page_shows_what_the_rooms_print() -> None:
    assert page(TEXT) == TEXT, "run `make docs` and read the difference"


def test_a_block_that_the_page_lacks_is_named() -> None:
    first = BLOCK.search(TEXT)
    assert first is not None
    with pytest.raises(ValueError, match=first[1]):
        page(TEXT.replace(first[0], ""))
    with pytest.raises(ValueError, match=first[1]):
        page(TEXT + first[0])
    with pytest.raises(ValueError, match="other"):
        page(TEXT.replace(f"begin {first[1]} ", "begin other "))


@pytest.mark.parametrize("document", ["README.md", "docs/architecture.md"])
def test_every_room_is_named(document: str) -> None:
    text = (ROOT / document).read_text()
    inside = sorted((ROOT / "mcfuser").iterdir())
    rooms = [p.name for p in inside if p.is_dir() and p.name != "__pycache__"]
    missing = [r for r in rooms if f"`mcfuser/{r}/`" not in text]
    missing += [r for r in ("db", "service", "deploy") if f"`{r}/`" not in text]
    if document != "README.md":
        modules = [p.name for p in inside if p.suffix == ".py" and p.stem != "__init__"]
        missing += [m for m in modules if f"`mcfuser/{m}`" not in text]
    assert not missing


ROW = re.compile(r"^\| (`[^|]*) \| ([^|]*) \| [^|]*\|$", re.MULTILINE)
CONSTANT = re.compile(r"`(_\w+|[A-Z][A-Z_]+)`")


def sources(cell: str) -> Iterator[Path]:
    for name in re.findall(r"`([\w./-]+)`", cell):
        path = ROOT / name
        yield from path.rglob("*.py") if path.is_dir() else (path,)


def test_what_is_to_be_changed_is_in_the_file_beside_it() -> None:
    """Constants and private functions: the other names are checked by tests/docs/test_names.py."""
    rows = [row for row in ROW.findall(TEXT) if CONSTANT.search(row[1])]
    assert len(rows) > 10
    for files, change in rows:
        text = "\n".join(p.read_text() for p in (*sources(files), *sources(change)) if p.is_file())
        for name in CONSTANT.findall(change):
            assert re.search(rf"\b{name}\b", text), f"{name} is not in {files}"
