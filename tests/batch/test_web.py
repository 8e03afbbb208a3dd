"""The page of a batch: it stands alone, and nothing from a model becomes markup."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mcfuser.batch import web
from mcfuser.batch.outcome import Outcome
from mcfuser.batch.results import Batch
from mcfuser.batch.run import Done
from mcfuser.batch.web import web_page
from mcfuser.batch.zoo import BatchOptions, Entry

OPTIONS = BatchOptions(0, None, None, 60.0, None)
HOSTILE = """"><script>alert('x')</script><img src=x onerror=alert(1)>&lt;'"""
VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """The elements of a page, by where they stand; an element that is not closed is a mistake."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.words.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == tag]


def done(name: str, outcome: Outcome, unchanged: bool = False) -> Done:
    entry = Entry(name, Path(name), "cpu", ("x=1x4",), OPTIONS)
    return Done(entry, "key", "cpu/x", outcome, unchanged)


def batch(*entries: Done) -> Batch:
    return Batch("zoo.toml", datetime(2026, 1, 2, tzinfo=UTC), 3.0, entries)


def report(folder: Path, one: Done, document: object) -> None:
    there = folder / "entries" / one.entry.folder
    there.mkdir(parents=True)
    (there / "report.json").write_text(json.dumps(document))
    (there / "log.txt").write_text("")


def kernel(seconds: float | None, predicted: float = 1e-6) -> Mapping[str, object]:
    return {
        "expression": "mhnk", "tiles": {"m": 16}, "lowering": {"rows": 8},
        "measured_seconds": seconds, "predicted_seconds": predicted,
    }  # fmt: skip


GOOD = Outcome("passed", None, 1.0, 1e-7, 1e-4, 1e-3, 2e-3, 8e-4, 2, 1, "m")


def test_an_entry_has_its_figures_chains_and_times(tmp_path: Path) -> None:
    one = done("a.onnx", GOOD)
    chains = [
        {"name": "attention", "places": ["p", "q"], "operators": ["C[m] = A[m]"], "fused": True,
         "reason": "1.50x over unfused", "kernels": [kernel(3e-6)]},
        {"name": "norm", "places": ["r"], "operators": [], "fused": False,
         "reason": "left to TVM: too large", "kernels": []},
        {"name": "ffn", "places": ["s"], "operators": [], "fused": False, "reason": "predicted",
         "kernels": [kernel(None)]},
    ]  # fmt: skip
    products = [
        {"name": "MatMul_7", "reason": "no product follows"},
        {"name": "MatMul_8", "reason": "no product follows"},
        {"name": "MatMul_9", "reason": None},
    ]
    report(tmp_path, one, {"times": "measured in part", "chains": chains, "products": products})
    text = web_page(batch(one), tmp_path)
    page = Page(text)
    assert page.words["td"][2:6] == ["1.0e-07", "1.000 ms", "0.50", "1.25"]
    assert "1.50x over unfused" in text and "left to TVM: too large" in text
    assert "no product follows: MatMul_7, MatMul_8" in text and "MatMul_9" not in text
    labels = [w for w in page.words["span"] if "mhnk" in w]
    assert labels == ["attention in 2 places: mhnk m=16", "ffn: mhnk m=16"]
    assert "6.0 us, 86%" in text and "1.0 us, 14%" in text
    links = [a["href"] for a in page.all("a")]
    assert f"entries/{one.entry.folder}/log.txt" in links and "#e1" in links
    assert f"entries/{one.entry.folder}/module.so" not in links, "there is none"


def test_nothing_from_a_model_is_markup(tmp_path: Path) -> None:
    one = done(f"{HOSTILE}.onnx", Outcome("failed", HOSTILE))
    chain = {
        "name": HOSTILE, "operators": [HOSTILE], "fused": True, "reason": HOSTILE,
        "kernels": [{**kernel(1e-6), "expression": HOSTILE, "tiles": {HOSTILE: 1},
                     "lowering": {HOSTILE: HOSTILE}}],
    }  # fmt: skip
    product = {"name": HOSTILE, "reason": HOSTILE}
    report(tmp_path, one, {"times": HOSTILE, "chains": [chain], "products": [product]})
    plain = Page(web_page(batch(done("a.onnx", GOOD)), tmp_path))
    page = Page(web_page(replace(batch(one), zoo=HOSTILE), tmp_path))
    assert len(page.all("script")) == len(plain.all("script")) == 1 and not page.all("img")
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
    assert sum(HOSTILE in w for found in page.words.values() for w in found) >= 8


def test_a_file_name_that_is_no_utf_8_is_shown(tmp_path: Path) -> None:
    assert "a\ufffd.onnx" in web_page(batch(done("a\udcff.onnx", GOOD)), tmp_path)


def test_the_page_stands_alone(tmp_path: Path) -> None:
    text = web_page(batch(done("a.onnx", GOOD)), tmp_path)
    page = Page(text)
    assert not re.search(r"https?:|//|url\(|@import", text.replace("<!doctype", ""))
    assert not page.all("link") and all("src" not in a for _, a in page.elements)
    policy = next(a for a in page.all("meta") if a.get("http-equiv"))
    assert policy["content"] is not None and "default-src 'none'" in policy["content"]
    assert "prefers-color-scheme: dark" in text and "width=device-width" in text


def test_it_can_be_read_by_keyboard_and_by_a_screen_reader(tmp_path: Path) -> None:
    one = done("a.onnx", GOOD)
    report(tmp_path, one, {"chains": [{"name": "c", "fused": False}]})
    page = Page(web_page(batch(one), tmp_path))
    assert page.all("html")[0]["lang"] == "en"
    assert all(a.get("scope") in ("col", "row") for a in page.all("th"))
    scrolled = [a for a in page.all("div") if a.get("class") == "scroll"]
    assert scrolled and all(a["tabindex"] == "0" and a["aria-label"] for a in scrolled)
    buttons = page.all("button")
    assert len(buttons) == 9 and len(page.all("details")) == len(page.all("summary")) == 1


def test_what_needs_a_look_comes_first_and_open(tmp_path: Path) -> None:
    page = Page(
        web_page(
            batch(
                done("good.onnx", GOOD, unchanged=True),
                done("bad.onnx", Outcome("disagreed", "by far", error=0.5)),
                done("slow.onnx", replace(GOOD, state="slower", reason="it takes longer")),
            ),
            tmp_path,
        )
    )
    rows = [a["data-state"] for a in page.all("tr") if "data-state" in a]
    assert rows == ["disagreed", "slower", "passed"]
    assert ["open" in a for a in page.all("details")] == [True, True, False]
    values = [a["value"] for a in page.all("input")]
    assert values == rows


def test_thousands_of_entries_have_rows_and_the_first_have_chains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "DETAILED", 2)
    text = web_page(batch(*(done(f"{i}.onnx", GOOD) for i in range(5))), tmp_path)
    page = Page(text)
    assert len([a for a in page.all("tr") if "data-state" in a]) == 5
    assert len(page.all("details")) == 2 and "3 more are in report.json" in text
