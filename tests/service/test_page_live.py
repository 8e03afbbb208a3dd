"""The page's jobs in a real browser, used as people use it.

A test plays the worker, but for one, in which a model is compiled.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from mcfuser.errors import ModelError
from mcfuser.tune.progress import ChainPlace, Progress
from mcfuser.tune.tried import schedule
from mcfuser_db import Job, LogLine, Order
from mcfuser_db.api_keys import KeyGrant, make_key
from mcfuser_service import compilation, worker
from mcfuser_service.compilation import CompileResult
from mcfuser_service.compiler import Compiler
from mcfuser_service.documents import Report
from mcfuser_service.schemas import JobOptions
from tests.support.browser import PHONE, complaints, eventually, resize, run_script, visit
from tests.support.kernels import tuned
from tests.support.paths import FIXTURES
from tests.support.reports import KEYS, report
from tests.support.served import Served, serving

HOSTILE = """<img src=x onerror="window.owned=1"><script>alert(1)</script>'">${1}&lt;"""
ENTER, TAB, ESCAPE, DOWN = "\ue007", "\ue004", "\ue00c", "\ue015"
CSS = "css selector"
REFUSED = b"refused"


async def inspect(model: Path, shapes: Mapping[str, Any]) -> None:
    if model.read_bytes() == REFUSED:
        raise ModelError(f"operator '{HOSTILE}' is not known")


@pytest.fixture(scope="module")
def served(
    browser: Any, asked_here: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("data"), inspect, max_model_bytes=1 << 24) as served:
        keep_kernels(served)
        yield served


def keep_kernels(served: Served) -> None:
    """Keeps what reports of tests.support.reports tell of, and candidates of the first kernel."""
    for key in KEYS:
        served.store.put(tuned(key))
    chain = tuned(KEYS[0]).chain
    tried = [
        replace(
            schedule(chain, "mn(k,h)", {"m": 16 * n, "n": 16}, None, 1, True, {}, seconds),
            failed=None if seconds else "it spills",
            predicted=1e-4 * n,
        )
        for n, seconds in enumerate((3e-4, None, 2e-4, 2.5e-4, 1e-4), 1)
    ]
    made: Any = SimpleNamespace(digest=KEYS[0])
    served.store.keep_tried(made, chain, "cpu", tried)


@dataclass
class Page:
    """The browser on the page of a server, and what stands behind it."""

    browser: Any
    served: Served

    def open(self, where: str = "/", anew: bool = False) -> None:
        """Goes to an address of the page; a test's first loads it (tests.support.browser.visit)."""
        visit(self.browser, f"http://127.0.0.1:{self.served.port}/", where, anew)
        self.settled()

    def settled(self) -> None:
        eventually(lambda: not self.all("#content[aria-busy]") and self.all("#content h1"), 30)

    def all(self, css: str) -> list[Any]:
        return list(self.browser.find_elements(CSS, css))

    def one(self, css: str) -> Any:
        return eventually(lambda: self.all(css), 20)[0]

    def text(self, css: str = "#content") -> str:
        return str(self.one(css).text)

    def says(self, words: str, css: str = "#content") -> None:
        script = "return document.querySelector(arguments[0])?.innerText.includes(arguments[1])"
        eventually(lambda: self.browser.execute_script(script, css, words), 20)

    def button(self, words: str) -> Any:
        def found() -> list[Any]:
            every = self.all("button")
            return [b for b in every if words in (b.text, b.get_attribute("aria-label"))]

        return eventually(found, 20)[0]

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()

    def tab_to(self, css: str, most: int = 40) -> Any:
        """Presses the tab key until an element has the focus."""
        for _ in range(most):
            self.press(TAB)
            at = self.browser.switch_to.active_element
            if self.browser.execute_script("return arguments[0].matches(arguments[1])", at, css):
                return at
        pytest.fail(f"the tab key does not lead to {css}")

    # what a worker does

    def posted(self, name: str | None = None, model: bytes = b"model") -> UUID:
        """A job that nobody has posted by the page; jobs of earlier tests are ended."""
        store, blobs = self.served.store, self.served.blobs
        for other in (*store.jobs("queued", 500, None), *store.jobs("running", 500, None)):
            store.cancel(other.id)
        options: dict[str, Any] = {"shape": [], "seed": 0}
        order = Order(uuid4().hex * 2, blobs.put(model), len(model), "cpu", options, name)
        return store.submit(order)[0].id

    def claimed(self) -> Job:
        job = self.served.store.claim("w", 3600)
        assert job is not None and job.claim is not None
        return job

    def tell(self, job: Job, progress: Progress, *lines: str) -> None:
        store = self.served.store
        assert job.claim is not None
        store.renew(job.claim, 3600, progress, [LogLine(store.now(), line) for line in lines])

    def finish(
        self,
        job: Job,
        what: dict[str, Any],
        module: bytes = b"\x7fELF module",
        attestation: str | None = None,
    ) -> None:
        store, digest = self.served.store, self.served.blobs.put(module)
        assert job.claim is not None
        store.finish(job.claim, digest, len(module), what, attestation=attestation)

    def done(self, name: str | None, what: dict[str, Any] | None = None) -> UUID:
        id = self.posted(name)
        self.finish(self.claimed(), what if what is not None else report())
        return id


@pytest.fixture
def page(browser: Any, served: Served, tmp_path: Path) -> Iterator[Page]:
    """The page; nothing may have been complained of in the browser's console in the end."""
    resize(browser, 1200, 900)
    allowed = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", allowed)
    yield Page(browser, served)
    browser.get("about:blank")  # its streams are ended
    assert complaints(browser) == []


def searching(done: int, best: float | None = None) -> Progress:
    place = ChainPlace(2, 5, "layer0/attention")
    return Progress("measure", done, 96, done + 7, 3, best, place, 38.5)


class TestAPerson:
    def test_posts_a_model_and_has_its_module(
        self, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Everything is real: the model is compiled for this CPU, with few rounds of timing."""
        monkeypatch.setattr(compilation, "_MODULE", "tests.support.hasty_compile")
        model = tmp_path / "demo.onnx"
        shutil.copy(FIXTURES / "feed_forward_relu.onnx", model)
        page.open()
        page.one("[name=model]").send_keys(str(model))
        page.says("demo.onnx", "#chosen")
        page.button("Compile").click()
        page.says("queued", ".state")
        with a_worker(page.served):
            eventually(lambda: page.served.store.jobs("done", 1, None), 300)
        eventually(lambda: page.text(".state") == "done", 20)
        assert page.text("h1") == "demo.onnx"
        page.says("Error against onnxruntime")
        module = page.served.store.jobs("done", 1, None)[0].module
        assert module is not None
        page.button("Download the module").click()
        kept = tmp_path / "module.so"
        eventually(
            lambda: kept.exists() and kept.read_bytes() == page.served.blobs.read(module), 30
        )
        link = page.one("a.kernel")
        assert "#/kernels/" in link.get_attribute("href")
        link.click()
        page.settled()
        page.says(page.browser.current_url.rpartition("/")[2][:12])

    def test_is_told_in_a_sentence_why_a_model_is_refused(self, page: Page, tmp_path: Path) -> None:
        page.open()
        page.button("Compile").click()
        page.says("Choose a model first")
        bad = tmp_path / "bad.onnx"
        bad.write_bytes(REFUSED)
        page.one("[name=model]").send_keys(str(bad))
        page.button("Compile").click()
        page.says(f"Operator '{HOSTILE}' is not known.", ".problem")
        page.one("[name=timeout]").send_keys("soon")
        page.button("Compile").click()
        page.says("Query 'timeout'", ".problem")
        said = complaints(page.browser)  # the browser tells of answers that are no success
        assert all("422" in line for line in said) and len(said) == 2

    def test_drops_a_model(self, page: Page) -> None:
        page.open()
        run_script(
            page.browser,
            """const drop = (...files) => {
              const carried = new DataTransfer();
              for (const name of files) carried.items.add(new File(["model of " + name], name));
              document.querySelector(".zone").dispatchEvent(
                new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true }));
            };
            drop("a.onnx", "a.onnx.data");
            if (!document.querySelector(".problem").textContent.includes("one file"))
              throw new Error("two files");
            drop("dropped.onnx");""",
        )
        page.says("dropped.onnx", "#chosen")
        page.one("[name=device]").send_keys("nvidia/h100")
        page.one("[name=shape]").send_keys("x=1x2 y=3")
        page.one("[name=precision]").send_keys("float16")
        page.button("Compile").click()
        page.says("nvidia/h100", "dl")
        (job,) = page.served.store.jobs("queued", 1, None)
        assert (job.name, job.device) == ("dropped.onnx", "nvidia/h100")
        asked = {name: job.options[name] for name in ("shape", "precision", "timeout")}
        assert asked == {"shape": ["x=1x2", "y=3"], "precision": "fp16", "timeout": None}
        assert page.served.blobs.read(job.model) == b"model of dropped.onnx"


class TestAJob:
    @pytest.mark.thorough
    def test_is_followed_while_it_runs(self, page: Page, tmp_path: Path) -> None:
        id = page.posted("followed")
        page.open(f"/jobs/{id}")
        assert page.text("[role=status]") == "queued waits for a worker"
        job = page.claimed()
        page.tell(job, searching(24, 2.1e-4), "measure chain 2 of 5: layer0/attention")
        page.says("running Measuring chain 2 of 5", "[role=status]")
        page.says("layer0/attention", ".live")
        facts = page.text(".live dl").split("\n")
        told = dict(zip(facts[::2], facts[1::2], strict=True))
        left = told.pop("Time left")
        assert told == {
            "Candidates": "96 at most", "Compiled": "31", "Measured": "24", "Failed": "3",
            "Best so far": "210 µs",
        }  # fmt: skip
        assert left.startswith("about 3")
        assert page.one("progress").get_attribute("value") == "24"
        page.one("details.log summary").click()
        page.says("measure chain 2 of 5: layer0/attention", "pre")
        for done, best in ((40, 2.0e-4), (60, 1.5e-4)):
            page.tell(job, searching(done, best))
            page.says(str(done), ".live dl")
        page.says("time of the best", ".curve")
        page.finish(job, report())
        page.says("done", ".state")
        page.says("Error against onnxruntime")
        assert not page.all(".live")
        page.says("done: a module of 11 bytes", "pre")
        page.button("Download the module").click()
        kept = tmp_path / "module.so"
        eventually(lambda: kept.exists() and kept.read_bytes() == b"\x7fELF module")

    def test_has_what_was_measured_before_it_was_opened(self, page: Page) -> None:
        """Of the search at hand alone, also where the job was tried before."""
        points = """.curve svg circle[r="7"]"""  # the marks of its values
        id = page.posted("opened later")
        earlier = page.claimed()
        page.tell(earlier, searching(60, 1e-6))
        assert earlier.claim is not None and page.served.store.spare(earlier.claim, "killed")
        job = page.claimed()
        first = ChainPlace(1, 5, "layer0/mlp")
        page.tell(job, replace(searching(50, 1e-6), chain=first))
        for done in (10, 20, 30):
            page.tell(job, searching(done, 1e-3 / done))
        page.open(f"/jobs/{id}")
        eventually(lambda: len(page.all(points)) == 3, 20)
        assert "30" in page.text(".live dl")
        page.tell(job, searching(40, 1e-3 / 40))
        eventually(lambda: len(page.all(points)) == 4, 20)
        page.finish(job, report())
        page.says("done", ".state")

    def test_goes_on_where_it_was_tried_again_meanwhile(self, page: Page) -> None:
        id = page.posted("tried meanwhile")
        page.open(f"/jobs/{id}")
        page.says("queued", ".state")
        page.served.store.cancel(id)
        assert page.served.store.put_back(id) is not None
        page.says("queued", ".state")
        job = page.claimed()
        page.says("running", ".state")
        page.finish(job, report())
        page.says("done", ".state")

    def test_shows_where_the_time_goes(self, page: Page) -> None:
        made = report()
        Report.model_validate(made)
        page.open(f"/jobs/{page.done('shown', made)}")
        page.says("How the kernels were found")
        page.says("multiple of the best")
        headings = [svg.get_attribute("aria-label").split(":")[0] for svg in page.all("svg.plot")]
        assert headings == [
            "The model, in the order in which it runs",
            "chain 1 layer0/attention", "chain 2 mlp", "chain 3 left",
            "Time of a run, by function", "Time by kernel, in all its places", "Roofline",
            "Candidates of 1 · layer0/attention", "Best so far", "Predicted against measured",
        ]  # fmt: skip
        first = page.all(".chain-card")[0]
        titles = [t.get_attribute("textContent") for t in first.find_elements(CSS, "title")]
        assert titles == made["chains"][0]["operators"]
        assert page.all(".chain-card")[1].text.count("kernel") >= 2
        page.says("left to TVM", ".chain-cards")
        page.says("14 %", "#content")  # of the run is TVM's
        page.one("select").send_keys("2 · mlp, part 2")
        page.says("Candidates of 2 · mlp, part 2 of 2")
        links = {a.get_attribute("href").rpartition("/")[2] for a in page.all("a.kernel")}
        assert links == {k["key"] for c in made["chains"] for k in c["kernels"]}
        figures = len(page.all("svg.plot"))
        assert len([b for b in page.all("button") if b.text == "PNG"]) == figures

    @pytest.mark.thorough
    def test_that_was_signed_has_its_attestation(self, page: Page, tmp_path: Path) -> None:
        """While the page follows it, and when the page is opened later; others have none."""
        id, envelope = page.posted("signed"), '{"payload":"eA=="}\n'
        page.open(f"/jobs/{id}")
        page.says("queued", ".state")
        page.finish(page.claimed(), report(), attestation=envelope)
        page.says("Every chain")
        page.button("Download the attestation").click()
        kept = tmp_path / "module.intoto.jsonl"
        eventually(lambda: kept.exists() and kept.read_text() == envelope)
        page.open(f"/jobs/{id}")
        page.button("Download the attestation")
        page.open(f"/jobs/{page.done('unsigned')}")
        page.button("Download the report")
        assert "Download the attestation" not in {b.text for b in page.all("button")}

    def test_is_cancelled_and_tried_again(self, page: Page) -> None:
        id = page.posted("tried")
        page.open(f"/jobs/{id}")
        page.button("Cancel").click()
        page.says("cancelled", ".state")
        page.button("Try again").click()
        page.says("queued", ".state")
        job = page.claimed()
        page.says("running", ".state")
        problem = {"type": "urn:mcfuser:problem:timed-out", "title": "The job took too long",
                   "status": 422, "detail": "the model was not compiled within 5 s"}  # fmt: skip
        assert job.claim is not None
        page.served.store.fail(job.claim, problem)
        page.says("The model was not compiled within 5 s.", ".problem")
        page.button("Try again").click()
        page.says("queued", ".state")

    def test_that_is_not_there_is_a_sentence(self, page: Page) -> None:
        page.open("/jobs/00000000-0000-4000-8000-000000000000")
        page.says("No job has the id 00000000-0000-4000-8000-000000000000", "[role=alert]")
        page.open("/nowhere")
        page.says("This page has no view '/nowhere'.", "[role=alert]")
        assert len(complaints(page.browser)) == 1, "the 404 alone"

    def test_of_an_earlier_version_has_less_in_its_report(self, page: Page) -> None:
        made = report()
        del made["outline"], made["functions"], made["check"]
        for chain in made["chains"]:
            del chain["cut"]
            for kernel in chain["kernels"]:
                del kernel["work"]
        page.open(f"/jobs/{page.done('earlier', made)}")
        page.says("Every chain")
        assert len(page.all(".chain-card")) == 3

    def test_goes_on_where_its_stream_broke_off(self, page: Page) -> None:
        page.open()
        found = run_script(
            page.browser,
            r"""const { events } = await import("/page/api.js");
            const asked = [], bodies = [
              "retry: 5\n\nevent: state\ndata: one\nid: 4\n\nevent: progress\ndata: tw",
              ": still here\n\nevent: progress\r\ndata: two\r\nid: 5\r\n\r\n", null,
            ];
            window.fetch = async (path, options) => {
              asked.push(options.headers["Last-Event-ID"] ?? null);
              const body = bodies.shift();
              return new Response(body, { status: body === null ? 204 : 200 });
            };
            const seen = [];
            for await (const e of events("/x", new AbortController().signal))
              seen.push([e.kind, e.data, e.id]);
            return [asked, seen];""",
        )
        assert found == [[None, "4", "5"], [["state", "one", "4"], ["progress", "two", "5"]]]


class TestTheList:
    @pytest.mark.thorough
    def test_changes_where_it_is(self, page: Page) -> None:
        """The focus stays on a job's link while its state changes beside it."""
        page.posted("listed")
        page.open()
        page.says("listed", "table.jobs")
        row = next(r for r in page.all("table.jobs tbody tr") if "listed" in r.text)
        link = row.find_element(CSS, "a")
        page.browser.execute_script("arguments[0].focus()", link)
        job = page.claimed()
        page.tell(job, searching(1))
        eventually(lambda: "Measuring chain 2 of 5" in row.text, 20)
        page.finish(job, report())
        eventually(lambda: "done" in row.text, 20)
        assert page.browser.switch_to.active_element == link
        page.one("section select").send_keys("running")
        page.says("No job is running.")

    def test_has_more_pages(self, page: Page) -> None:
        for n in range(27):
            page.posted(f"one of many {n}")
        page.open()
        page.button("Show older jobs").click()
        eventually(lambda: len(page.all("table.jobs tbody tr")) > 25)


def test_all_can_be_done_with_the_keyboard(page: Page, tmp_path: Path) -> None:
    page.open()
    model = tmp_path / "keys.onnx"
    model.write_bytes(b"model by keys")
    page.press(TAB)
    assert page.browser.switch_to.active_element.text == "Skip to the content"
    page.tab_to("[name=model]").send_keys(str(model))  # what the dialog of the system would give
    page.tab_to("[name=name]").send_keys("by keys")
    page.tab_to("[name=device]")
    page.press(DOWN)
    page.tab_to("[name=precision]")
    page.tab_to("[name=timeout]").send_keys("1m", ENTER)
    page.says("by keys", "h1")
    (job,) = page.served.store.jobs("queued", 1, None)
    assert (job.name, job.device != "cpu", job.options["timeout"]) == ("by keys", True, 60.0)
    page.tab_to("#content button")
    page.press(ENTER)
    page.says("cancelled", ".state")
    page.browser.execute_script("document.activeElement.blur()")
    page.open(f"/jobs/{page.done('figures')}")
    page.says("How the kernels were found")
    page.tab_to("svg.plot")
    page.press("\ue014")  # the right arrow: the first mark of the figure
    label = page.browser.switch_to.active_element.get_attribute("aria-label")
    assert label.startswith("chain 1, layer0/attention") and "(1 of 5" in label
    page.tab_to("details summary")
    page.press(ENTER)
    page.says("no layer0/attention", "details[open]")


@pytest.mark.thorough
@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_is_wider_than_it(page: Page, dark: bool) -> None:
    resize(page.browser, *PHONE, dark=dark)
    long = "encoder/layers/0/self_attention/" * 6
    done, running = page.done(long, report(long)), page.posted("x" * 200)
    page.tell(page.claimed(), searching(5, 1e-4))
    for where, words in (("/", "Compile a model"), (f"/jobs/{done}", "Every chain"),
                         (f"/jobs/{running}", "Time left")):  # fmt: skip
        page.open(where)
        page.says(words)
        for details in page.all("details"):
            details.find_element(CSS, "summary").click()
        wide = page.browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= PHONE[0], where


class TestColours:
    def test_follow_the_system_and_the_reader(self, page: Page) -> None:
        ground = "return getComputedStyle(document.body).backgroundColor"
        page.open()
        light = page.browser.execute_script(ground)
        page.button("Show the page in dark colours").click()
        dark = page.browser.execute_script(ground)
        assert dark != light
        page.open(anew=True)
        assert page.browser.execute_script(ground) == dark, "it is kept"
        page.button("Show the page in light colours").click()
        assert page.browser.execute_script("return localStorage.length") == 0, (
            "as the system has it"
        )
        resize(page.browser, 1200, 900, dark=True)
        assert page.browser.execute_script(ground) == dark
        page.button("Show the page in light colours")

    @pytest.mark.parametrize("dark", [False, True])
    def test_can_be_read(self, page: Page, dark: bool) -> None:
        """WCAG's contrast of 4.5 for text, 3 for what figures and fields are drawn with."""
        resize(page.browser, 1200, 900, dark=dark)
        page.open()
        ratios = run_script(
            page.browser,
            """const probe = document.body.appendChild(document.createElement("i"));
            const light = (name) => {
              probe.style.color = `var(--${name})`;
              const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number)
                .map((c) => c / 255)
                .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
              return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            return given[0].map(([one, other]) => {
              const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
              return [one, other, (a + 0.05) / (b + 0.05)];
            });""",
            [[ink, ground] for ground in ("ground", "raised")
             for ink in ("text", "faint", "accent", "good", "bad", "wait")]
            + [["on-accent", "accent"], ["accent", "accent-soft"]],
        )  # fmt: skip
        assert [r for r in ratios if r[2] < 4.5] == []


def test_names_are_text_wherever_they_stand(page: Page) -> None:
    """A model's names are anyone's words."""
    made = report(HOSTILE)
    page.open(f"/jobs/{page.done(HOSTILE, made)}")
    page.says("Every chain")
    assert page.text("h1") == HOSTILE
    for details in page.all("details"):
        details.find_element(CSS, "summary").click()
    page.says(f"no {HOSTILE}")
    failed = page.posted(f"{HOSTILE} 2")
    job = page.claimed()
    page.tell(job, searching(1), HOSTILE)
    assert job.claim is not None
    page.served.store.fail(job.claim, {"type": "t", "title": HOSTILE, "status": 422,
                                       "detail": HOSTILE})  # fmt: skip
    for where in (f"/jobs/{failed}", "/"):
        page.open(where)
        page.says(HOSTILE)
        assert page.all("#content img, #content script") == []
        assert not page.browser.execute_script("return window.owned")
    page.open(f"/jobs/{failed}")
    page.one("details.log summary").click()
    page.says(HOSTILE, "pre")
    page.open("/kernels/" + "%3Cimg%20src%3Dx%3E")
    page.open("/jobs/%3Cimg%20src%3Dx%3E%22'")
    page.says("UUID", "[role=alert]")
    assert page.all("#content img") == []
    complaints(page.browser)  # of answers that are no success


def test_screen_readers_have_a_name_for_every_control(page: Page) -> None:
    done, running = page.done("read to the end"), page.posted("read aloud")
    page.tell(page.claimed(), searching(5, 1e-4))
    for where in ("/", f"/jobs/{running}", f"/jobs/{done}"):
        page.open(where)
        eventually(lambda: page.all("table, .live"))
        tree = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        nameless = [
            node["role"]["value"] for node in tree
            if not node["ignored"]
            and node["role"]["value"] in {"button", "link", "textbox", "combobox", "img", "dialog",
                                          "progressbar", "navigation", "checkbox", "region"}
            and not node.get("name", {}).get("value")
        ]  # fmt: skip
        assert nameless == [], where
        assert len(page.all("h1")) == 1


def test_nothing_is_asked_of_another_origin(page: Page) -> None:
    page.open(f"/jobs/{page.done('offline')}")
    page.says("Every chain")
    asked = page.browser.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    origin = f"http://127.0.0.1:{page.served.port}/"
    assert len(asked) > 5 and all(address.startswith(origin) for address in asked)
    refused = run_script(
        page.browser,
        """const found = [];
        const note = (event) => found.push(event.effectiveDirective);
        document.addEventListener("securitypolicyviolation", note);
        await fetch("http://127.0.0.2:9/").catch(() => {});
        try { document.body.innerHTML = "<b>x</b>"; } catch { found.push("html"); }
        await new Promise((done) => setTimeout(done, 100));
        return found;""",
    )
    assert {"connect-src", "html"} <= set(refused)
    complaints(page.browser)  # of just these


@pytest.mark.thorough
def test_where_keys_are_wanted_one_is_asked_for(browser: Any, page: Page, tmp_path: Path) -> None:
    (folder := tmp_path / "keyed").mkdir()
    with serving(folder, inspect, require_key=True) as served:
        keep_kernels(served)
        keyed = Page(browser, served)
        words = make_key(served.store, KeyGrant("person", ("submit", "read")))[1].words
        id = keyed.done("secret")
        browser.get(f"http://127.0.0.1:{served.port}/#/jobs/{id}")
        keyed.says("This needs a key", "dialog")
        keyed.press("mcfuser_wrong", ENTER)
        keyed.says("The key has another form", "dialog")
        keyed.press(words, ENTER)
        keyed.says("Every chain")
        keyed.button("Download the module").click()
        kept = tmp_path / "module.so"
        eventually(lambda: kept.exists() and kept.read_bytes() == b"\x7fELF module")
        running = keyed.posted("streamed")
        browser.get(f"http://127.0.0.1:{served.port}/#/jobs/{running}")
        keyed.says("queued", ".state")
        keyed.claimed()
        keyed.says("running", ".state")
        assert not keyed.one("dialog").is_displayed()
        reader = make_key(served.store, KeyGrant("reader", ("read",)))[1].words
        browser.execute_script("sessionStorage.setItem('mcfuser.key', arguments[0])", reader)
        keyed.button("Cancel").click()
        keyed.says("Key 'reader' has the scopes read; this needs 'submit'.", "[role=alert]")
        browser.execute_script("sessionStorage.clear()")
        browser.get("about:blank")
    assert all("401" in line or "403" in line for line in complaints(browser))


@contextmanager
def a_worker(served: Served) -> Iterator[None]:
    """A thread that does one job of a server as its worker would, with one trial a chain, which the
    page has no field for; the block ends with it."""

    def work() -> None:
        job = served.store.claim("w", 3600)
        assert job is not None
        compiler, never = Compiler(served.settings), threading.Event()

        def compile_(model: Path, options: JobOptions, *more: Any) -> CompileResult:
            return compiler(model, options.model_copy(update={"trials": 1}), *more)

        try:
            worker.perform(
                served.settings, served.store, served.blobs, compile_, job, never, never.set
            )
        finally:
            compiler.stop()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()
