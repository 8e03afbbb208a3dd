"""Figures, the cache and a kernel's page in a real browser."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcfuser.tune.tried import Tried
from mcfuser.tune.tuned import Tuned
from tests.support.browser import PHONE, complaints, eventually, resize, run_script, visit
from tests.support.kernels import tuned
from tests.support.records import searched
from tests.support.served import Served, serving


async def inspect(model: Path, shapes: Mapping[str, Any]) -> None:
    """No model is posted here."""


@pytest.fixture(scope="module")
def served(
    browser: Any, asked_here: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("data"), inspect) as served:
        yield served
        browser.get("about:blank")  # nothing is asked of a server that is gone


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    """The browser, on the page of the server; nothing may have been complained of in the end."""
    resize(browser, 1200, 900)
    if browser.current_url != (root := f"http://127.0.0.1:{served.port}/"):
        browser.get(root)
    yield browser
    assert complaints(browser) == []


def drawn(page: Any, words: str, *given: Any) -> dict[str, Any]:
    """A figure that is put on the page: its texts, its titles, and how many marks it has.

    It stands beside the content, which the page may still be writing.
    """
    return run_script(
        page,
        f"""const plot = await import("/page/plot.js");
        const svg = {words};
        const made = Object.assign(document.createElement("div"), {{ id: "figure" }});
        const place = document.getElementById("figure") ?? made;
        place.replaceChildren(svg);
        document.getElementById("content").after(place);
        const texts = (what) => [...svg.querySelectorAll(what)].map((node) => node.textContent);
        return {{ texts: texts("text"), titles: texts("title"), label: svg.ariaLabel,
          marks: svg.querySelectorAll(".plot-mark").length, role: svg.getAttribute("role") }};""",
        *given,
    )


class TestScales:
    def ticks(self, page: Any, values: list[Any], axis: dict[str, Any]) -> list[str]:
        found = run_script(
            page,
            """const { scaleOf } = await import("/page/scale.js");
            const scale = scaleOf(given[0], given[1]);
            const ends = [scale.at(scale.low), scale.at(scale.high)];
            if (Math.abs(ends[0]) > 1e-9 || Math.abs(ends[1] - 1) > 1e-9) throw new Error(ends);
            return scale.ticks.map((tick) => tick.words);""",
            values, axis,
        )  # fmt: skip
        assert isinstance(found, list)
        return found

    def test_linear_ticks_are_round(self, page: Any) -> None:
        assert self.ticks(page, [3, 97], {}) == ["0", "20", "40", "60", "80", "100"]
        assert self.ticks(page, [0.0000021, 0.0000093], {"unit": "s"}) == [
            "0",
            "2",
            "4",
            "6",
            "8",
            "10",
        ]
        assert self.ticks(page, [-1, 1], {}) == ["-1", "-0.5", "0", "0.5", "1"]
        assert self.ticks(page, [100, 104], {"zero": False}) == ["100", "101", "102", "103", "104"]
        assert self.ticks(page, [0, 2_000_000], {})[-1] == "2 000 000"

    def test_logarithmic_ticks_are_powers_of_ten_or_finer(self, page: Any) -> None:
        log = {"scale": "log", "unit": "s"}
        assert self.ticks(page, [2e-6, 3e-2], log) == ["10 µs", "100 µs", "1 ms", "10 ms"]
        assert self.ticks(page, [2e-6, 1.5e-5], log) == ["2 µs", "5 µs", "10 µs", "20 µs"]
        assert self.ticks(page, [1.02e-6, 1.28e-6], log)[0] == "1 µs"
        assert len(self.ticks(page, [1.02e-6, 1.28e-6], log)) >= 3
        assert len(self.ticks(page, [1e-9, 1e12], {"scale": "log"})) <= 7

    def test_no_value_one_value_and_what_is_no_number(self, page: Any) -> None:
        assert self.ticks(page, [], {})[0] == "0"
        assert len(self.ticks(page, [], {"scale": "log"})) >= 2
        assert self.ticks(page, [None, 5, "x"], {})[0] == "0"
        assert self.ticks(page, [0, -3, 5e-6], {"scale": "log", "unit": "s"})[-1] == "10 µs"

    def test_quantities_have_three_digits_and_a_prefix(self, page: Any) -> None:
        pairs = [[1.234e-5, "s"], [9.999e-7, "s"], [4.8e12, "B/s"], [0, "s"], [12, ""], [None, "s"],
                 [1.5, "flop/B"], [3e-12, "s"]]  # fmt: skip
        words = run_script(
            page,
            """const { quantity } = await import("/page/scale.js");
            return given[0].map(([value, unit]) => quantity(value, unit));""",
            pairs,
        )
        assert words == ["12.3 µs", "1 µs", "4.8 TB/s", "0 s", "12", "–", "1.5 flop/B", "0.003 ns"]


class TestFigures:
    def test_points_without_a_place_are_counted_and_left_out(self, page: Any) -> None:
        some = [{"x": 1e-6, "y": 2e-6, "name": "<b>"}, {"x": None, "y": 1}, {"x": 0, "y": 1e-6}]
        log = {"unit": "s", "scale": "log"}
        axes = {"x": {"title": "predicted", **log}, "y": {"title": "measured", **log}}
        figure = drawn(
            page,
            "plot.points([{name: 'p', points: [...given[0], {x: NaN, y: Infinity}]}], given[1])",
            some, {"title": "T", **axes, "diagonal": "equal"},
        )  # fmt: skip
        assert figure["titles"] == ["<b>, predicted 1 µs, measured 2 µs"]
        assert "3 of 4 have no place on these axes" in figure["texts"]
        assert (figure["marks"], figure["role"]) == (1, "img")
        assert figure["label"].startswith("T: 1 points")

    def test_empty_figures_say_so(self, page: Any) -> None:
        for kind in ("points", "steps", "bars", "waterfall"):
            figure = drawn(page, f"plot.{kind}([], {{title: 'T', empty: 'Not yet.'}})")
            assert (figure["texts"], figure["marks"]) == (["T", "Not yet."], 0)
            assert figure["label"] == "T: Not yet."

    def test_names_of_bars_are_whole_and_text(self, page: Any) -> None:
        name = "<img src=x onerror=alert(1)>/" + "layer" * 60
        rows = [{"name": name, "value": 1e-5}, {"name": "none", "value": None}]
        figure = drawn(page, "plot.bars(given[0], {unit: 's', width: 320})", rows)
        assert name.replace(" ", "") in "".join(figure["texts"]).replace(" ", "")
        assert figure["titles"] == [f"{name}: 10 µs", "none: –"]
        assert page.find_elements("css selector", "svg img") == []

    def test_a_waterfall_says_what_each_rule_removed(self, page: Any) -> None:
        rows = [{"name": "space", "count": 1000}, {"name": "rule1", "count": 250},
                {"name": "rule2", "count": 250}, {"name": "rule3", "count": 0}]  # fmt: skip
        titles = drawn(page, "plot.waterfall(given[0])", rows)["titles"]
        assert titles == [
            "space: 1 000", "rule1: 250 left, 75 % removed", "rule2: 250 left, none removed",
            "rule3: 0 left, 100 % removed",
        ]  # fmt: skip

    def test_a_line_holds_each_value_until_the_next(self, page: Any) -> None:
        series = [{"name": "best", "points": [{"x": 1, "y": 9}, {"x": 4, "y": 3}]},
                  {"name": "all", "points": [{"x": 1, "y": 9}, {"x": 2, "y": None}],
                   "dots": True}]  # fmt: skip
        assert drawn(page, "plot.steps(given[0])", series)["marks"] == 3
        line = page.find_elements("css selector", "polyline")[-1].get_attribute("points")
        (x1, y1), (x2, y2), (x3, y3), (_, y4) = [map(float, p.split(",")) for p in line.split()]
        assert x1 < x2 == x3 and y1 == y2 < y3 == y4

    def test_marks_are_read_with_the_keyboard(self, page: Any) -> None:
        some = [
            {"x": 2, "y": 1, "name": "second"},
            {"x": 1, "y": 1, "name": "first", "href": "#/cache"},
        ]
        drawn(page, "plot.points([{name: 'p', points: given[0]}])", some)
        svg = page.find_element("css selector", "svg.plot")
        svg.send_keys("\ue014")  # the right arrow
        assert svg.get_attribute("aria-label").startswith("first, 1, 1 (1 of 2")
        svg.send_keys("\ue010")  # End
        assert page.find_element("css selector", ".plot-words text").text == "second, 2, 1"
        svg.send_keys("\ue00c")  # Escape
        assert page.find_elements("css selector", ".plot-words text") == []
        svg.send_keys("\ue014", "\ue007")  # Enter follows the link of the first
        assert page.execute_script("return location.hash") == "#/cache"

    def test_colours_are_those_of_the_page_light_or_dark(self, page: Any, served: Served) -> None:
        found = []
        for dark in (False, True):
            resize(page, 1200, 900, dark)
            drawn(page, "plot.bars([{name: 'one', value: 1}])")
            found.append(
                run_script(
                    page,
                    """const { painted } = await import("/page/downloads.js");
                    return painted(document.querySelector("svg.plot"));""",
                )
            )
        resize(page, 1200, 900)
        assert all("rgb(" in svg and "var(" not in svg for svg in found)
        assert found[0] != found[1]


class TestDownloads:
    def test_formulas_are_harmless_and_cells_are_quoted(self, page: Any) -> None:
        rows = [{"name": n, "value": v} for n, v in (
            ("=cmd()", -1.5), ("+1", None), ("-2", 3), ("@x", "a,b"), ('say "x"', "two\nlines"),
        )]  # fmt: skip
        text = run_script(page, 'return (await import("/page/downloads.js")).csv(given[0])', rows)
        read = list(csv.reader(io.StringIO(text, newline="")))
        assert read == [
            ["name", "value"], ["'=cmd()", "-1.5"], ["'+1", ""], ["'-2", "3"], ["'@x", "a,b"],
            ['say "x"', "two\nlines"],
        ]  # fmt: skip

    def test_a_figure_is_saved_as_svg_png_and_csv(self, page: Any, tmp_path: Path) -> None:
        page.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
        )
        run_script(
            page,
            """const plot = await import("/page/plot.js");
            const svg = plot.bars([{name: "one", value: 1}], {title: "T"});
            const figure = plot.downloads(svg, "T of =x", [{name: "one", value: 1}]);
            document.getElementById("content").after(figure);""",
        )
        names = {f"T-of-x.{kind}" for kind in ("svg", "png", "csv")}
        for button in page.find_elements("css selector", ".downloads button"):
            button.click()
        eventually(lambda: {p.name for p in tmp_path.iterdir()} == names)
        assert (tmp_path / "T-of-x.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "T-of-x.csv").read_text() == "name,value\none,1\n"
        assert (tmp_path / "T-of-x.svg").read_text().startswith("<svg ")


HOSTILE = '<img src=x onerror="document.title=1">/"layer\' & co'


@pytest.fixture(scope="module")
def kept(served: Served) -> list[Tuned]:
    """Kernels in the server's store: one with candidates and hostile names, and sixty others."""
    good = searched()
    for n in range(60):
        other = replace(
            tuned(f"{n:x}"), device="nvidia/h200", measured=(n + 1) * 1e-6,
            resources={"registers": 168, "shared": 16_384, "spills": 0}, launch={"threads": 128},
        )  # fmt: skip
        served.store.put(replace(other, chain=replace(other.chain, name=f"block{n}/mlp")))
    assert good.made is not None
    served.store.keep_tried(good.made, good.chain, good.device, tries(good))
    hostile = replace(
        good, chain=replace(good.chain, name=HOSTILE), source="<script>alert(1)</script>"
    )
    served.store.put(hostile)
    return [hostile]


def tries(kernel: Tuned) -> list[Tried]:
    made = [
        Tried(
            "a0a1a3",
            {"a1": 16 * n, "a2": 16},
            None,
            1,
            True,
            {"rows": n},
            n * 1e-6,
            1e-7,
            None,
            2e-6,
        )
        for n in (3, 5, 2, 1)
    ]
    return [
        *made,
        replace(made[0], tiles={"a1": 8, "a2": 16}, seconds=None, error=None, failed="<b>no</b>"),
    ]


class Shown:
    """What the page shows, as a reader sees it."""

    def __init__(self, page: Any, served: Served) -> None:
        self.page, self.root = page, f"http://127.0.0.1:{served.port}/"

    def open(self, fragment: str) -> None:
        visit(self.page, self.root, fragment.removeprefix("#"))

    def texts(self, selector: str) -> list[str]:
        found = run_script(
            self.page,
            "return [...document.querySelectorAll(given[0])].map((one) => one.textContent)",
            selector,
        )  # fmt: skip
        assert isinstance(found, list)
        return found

    def names(self) -> list[str]:
        return self.texts(".kernels tbody th a")

    def find(self, selector: str) -> Any:
        return eventually(lambda: self.page.find_elements("css selector", selector))[0]

    def has_no_width_beyond(self, width: int) -> bool:
        return bool(run_script(self.page, "return document.documentElement.scrollWidth") <= width)


@pytest.fixture
def shown(page: Any, served: Served, kept: list[Tuned]) -> Shown:
    return Shown(page, served)


class TestCache:
    @pytest.mark.thorough
    def test_kernels_are_searched_as_one_types_and_ordered_by_column(self, shown: Shown) -> None:
        shown.open("#/cache")
        eventually(lambda: len(shown.names()) == 50)
        assert shown.names()[0] == HOSTILE
        shown.find("input[type=search]").send_keys("block1 h200")
        eventually(
            lambda: set(shown.names()) == {"block1/mlp", *(f"block1{n}/mlp" for n in range(10))}
        )
        assert shown.texts("[role=status]")[0] == "11 kernels"
        shown.find("th[data-order=time] button").send_keys("\ue007")
        eventually(lambda: shown.names()[:2] == ["block1/mlp", "block10/mlp"])
        assert shown.find("th[data-order=time]").get_attribute("aria-sort") == "ascending"
        shown.find("th[data-order=time] button").send_keys("\ue007")
        eventually(lambda: shown.names()[0] == "block19/mlp")
        address = shown.page.execute_script("return location.hash")
        assert address == "#/cache?q=block1+h200&sort=time&order=desc"
        shown.open(address)
        eventually(lambda: shown.names()[:1] == ["block19/mlp"] and len(shown.names()) == 11)

    def test_more_are_shown_where_there_are_more_and_none_where_there_are_none(
        self, shown: Shown
    ) -> None:
        shown.open("#/cache?sort=chain&order=asc")
        eventually(lambda: len(shown.names()) == 50)
        shown.find(".kernels .buttons button").click()
        eventually(lambda: len(shown.names()) == 61)
        assert len(set(shown.names())) == 61
        shown.find("input[type=search]").send_keys("nothing at all")
        eventually(lambda: shown.texts("[role=status]")[0].startswith("No kernel has all"))

    def test_every_kernel_has_an_age_and_a_miss_is_explained(
        self, shown: Shown, kept: list[Tuned]
    ) -> None:
        shown.open("#/cache")
        eventually(lambda: len(shown.texts(".age")) == 50, 60)
        assert set(shown.texts(".age")) == {"current", "outdated"}
        shown.find("input[name=chain]").send_keys("gemm:1,9,9,9,9", "\ue007")
        eventually(lambda: shown.texts(".sentences li"), 60)
        assert shown.find(".sentences").get_attribute("data-answer") == "miss"
        assert "nothing was ever kept for this chain" in shown.texts(".sentences li")
        field = shown.find("input[name=chain]")
        field.clear()
        field.send_keys(kept[0].key, "\ue007")
        eventually(lambda: "".join(shown.texts(".sentences li")).startswith("hit"), 60)
        shown.find(".sentences a").send_keys("\ue007")
        eventually(lambda: shown.texts("h1") == [HOSTILE])


class TestKernel:
    def test_a_kernel_shows_what_it_is_and_how_it_was_found(
        self, shown: Shown, kept: list[Tuned]
    ) -> None:
        shown.open(f"#/kernels/{kept[0].key}")
        eventually(lambda: len(shown.texts("figure svg")) == 4, 60)
        assert shown.texts("h1") == [HOSTILE]
        assert "<script>alert(1)</script>" in shown.texts("pre")
        assert "<b>no</b>" in shown.texts("table td")
        assert shown.page.find_elements("css selector", "main img, main script, main b") == []
        labels = [
            n.get_attribute("aria-label")
            for n in shown.page.find_elements("css selector", "svg.plot")
        ]
        kinds = ("Candidates left", "Best so far", "Predicted against", "Roofline of cpu")
        assert [any(label.startswith(k) for label in labels) for k in kinds] == [True] * 4
        eventually(lambda: shown.texts(".age") == ["current"], 60)
        measured = [words.split(" ")[0] for words in shown.texts("table tr td:nth-child(2)")]
        assert {"1.00", "2.00", "3.00", "5.00"} <= set(measured)

    def test_a_kernel_for_a_gpu_shows_its_occupancy_and_one_for_a_cpu_none(
        self, shown: Shown, kept: list[Tuned]
    ) -> None:
        shown.open(f"#/kernels/{'1'.rjust(64, '0')}")
        eventually(lambda: shown.texts("[aria-label=Resources] th"))
        rows = dict(zip(shown.texts("[aria-label=Resources] th"),
                        shown.texts("[aria-label=Resources] td"), strict=True))  # fmt: skip
        assert rows == {
            "registers": "168", "shared": "16.0 KiB", "spills": "0 bytes",
            "threads of a block": "128", "blocks of a multiprocessor at a time": "3",
            "bounded by": "registers", "occupancy": "19 %",
        }  # fmt: skip
        shown.open(f"#/kernels/{kept[0].key}")
        eventually(lambda: len(shown.texts("figure svg")) == 4, 60)
        assert "occupancy" not in shown.texts("th")

    def test_a_kernel_that_is_not_kept_is_a_sentence(self, shown: Shown) -> None:
        for key, words in (
            ("x", "'x' is no key of a kernel"),
            ("f" * 64, "No kernel has the key f"),
        ):
            shown.open(f"#/kernels/{key}")
            sentences = eventually(lambda: shown.texts("main [role=alert]"))
            assert sentences[0].startswith(words)
        told = eventually(lambda: complaints(shown.page))  # the browser's own line
        assert len(told) == 1 and "404" in told[0]

    def test_a_phone_scrolls_tables_and_not_the_page(self, shown: Shown, kept: list[Tuned]) -> None:
        resize(shown.page, *PHONE)
        for fragment, there in (("#/cache", ".age"), (f"#/kernels/{kept[0].key}", "figure svg")):
            shown.open(fragment)
            eventually(lambda there=there: shown.texts(there), 60)
            assert shown.has_no_width_beyond(PHONE[0])

    @pytest.mark.thorough
    def test_the_whole_page_is_reached_with_the_tab_key(
        self, shown: Shown, kept: list[Tuned]
    ) -> None:
        shown.open(f"#/kernels/{kept[0].key}")
        eventually(lambda: len(shown.texts("figure svg")) == 4, 60)
        reached = set()
        for _ in range(52):
            shown.page.switch_to.active_element.send_keys("\ue004")
            reached.add(shown.page.execute_script(
                "const at = document.activeElement;"
                "return at.getAttribute('aria-label') ?? at.textContent"))  # fmt: skip
        assert {"Source", "Ask this server", "Record (JSON)"} <= reached
        assert any(str(label).startswith("Best so far") for label in reached)
