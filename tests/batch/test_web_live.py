"""The page of a batch in a real browser, from a file, as people open an artefact of CI."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mcfuser.batch.outcome import Outcome
from mcfuser.batch.results import Batch
from mcfuser.batch.run import Done
from mcfuser.batch.web import web_page
from mcfuser.batch.zoo import BatchOptions, Entry
from tests.support.browser import PHONE, complaints, resize, run_script

LONG = "encoder/" + "a_name_as_exporters_write_them_" * 6
HOSTILE = "<img src=x onerror='document.title=`spoilt`'>"
OPTIONS = BatchOptions(0, None, None, 60.0, None)
OUTCOMES = {
    "quick.onnx": Outcome("passed", None, 1.0, 1e-7, 1e-4, 1e-3, 2e-3, 8e-4, 2, 1, "m"),
    f"{LONG}.onnx": Outcome("passed", None, 1.0, 3e-7, 1e-4, 9e-3, 2e-3, None, 2, 1, "m"),
    f"{HOSTILE}.onnx": Outcome("failed", f"{HOSTILE} is no operator"),
    "wrong.onnx": Outcome("disagreed", "by far", 1.0, 0.5, 1e-4, 4e-3, 2e-3, None, 2, 2, "m"),
    "later.onnx": Outcome("not run", "no time was left for it"),
}  # fmt: skip
KERNEL = {
    "expression": "mhnk", "tiles": {"m": 16}, "lowering": {"rows": 8}, "measured_seconds": 3e-6,
    "predicted_seconds": 1e-6,
}  # fmt: skip
ROWS = "return [...document.querySelectorAll('#entries tbody tr')]"


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    """The browser on the page of a batch with entries in five states."""
    every = []
    for name, outcome in OUTCOMES.items():
        entry = Entry(name, Path(name), "cpu", ("x=1x4",), OPTIONS)
        there = tmp_path / "entries" / entry.folder
        there.mkdir(parents=True)
        chain = {
            "name": f"{name}/{LONG}", "places": ["p", "q"], "operators": [f"{LONG}[m] = A[m]"],
            "fused": True, "reason": "1.50x over unfused", "kernels": [KERNEL],
        }  # fmt: skip
        written = {"times": "measured", "chains": [chain], "products": []}
        (there / "report.json").write_text(json.dumps(written))
        (there / "log.txt").write_text("the log of an entry")
        every.append(Done(entry, "key", "cpu/x", outcome))
    result = Batch("zoo.toml", datetime(2026, 1, 2, tzinfo=UTC), 3.0, tuple(every))
    file = tmp_path / "report.html"
    file.write_text(web_page(result, tmp_path))
    resize(browser, 1200, 900)
    complaints(browser)
    browser.get(file.as_uri())
    yield browser
    assert complaints(browser) == []


def shown(page: Any) -> list[str]:
    """The states of the rows that are visible, in their order."""
    every: list[str] = run_script(
        page, f"{ROWS}.filter((row) => row.checkVisibility()).map((row) => row.dataset.state)"
    )
    return every


def test_entries_are_sorted_and_filtered(page: Any) -> None:
    first = ["disagreed", "failed", "not run", "passed", "passed"]
    assert shown(page) == first and HOSTILE not in page.title and page.title != "spoilt"
    heads = page.find_elements("css selector", "#entries thead button")
    by_error = next(head for head in heads if head.text == "error")
    by_error.click()
    # what has no error comes last
    assert shown(page) == ["passed", "passed", "disagreed", "failed", "not run"]
    by_error.click()
    assert shown(page)[0] == "disagreed"
    for box in page.find_elements("css selector", "input.filter"):
        if box.get_attribute("value") == "passed":
            box.click()
    assert sorted(shown(page)) == ["disagreed", "failed", "not run"]


def test_a_link_opens_its_entry_and_its_log(page: Any) -> None:
    link = next(
        a for a in page.find_elements("css selector", "#entries a") if a.text == "quick.onnx"
    )
    link.click()
    entry = page.find_element("css selector", "details:focus-within")
    assert "quick.onnx" in entry.text and "1.50x over unfused" in entry.text
    assert page.find_elements("css selector", "details[open] .bars li")
    entry.find_element("link text", "log.txt").click()
    assert "the log of an entry" in page.find_element("tag name", "body").text


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_in_both_lights(page: Any, dark: bool) -> None:
    ground = {}
    for size in (PHONE, (1200, 900)):
        resize(page, *size, dark=dark)
        run_script(page, "document.querySelectorAll('details').forEach((d) => (d.open = true))")
        wide, window, ground[size] = run_script(
            page,
            "return [document.documentElement.scrollWidth, innerWidth, "
            "getComputedStyle(document.body).backgroundColor]",
        )
        assert wide <= window, "nothing but tables scrolls to the side"
    dark_ground, light_ground = "rgb(20, 23, 28)", "rgb(255, 255, 255)"
    assert set(ground.values()) == {dark_ground if dark else light_ground}
