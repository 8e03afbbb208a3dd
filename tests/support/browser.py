"""A real browser, driven by the tests: Debian's chromium and chromium-driver."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
    "disable-background-networking", "disable-component-update", "disable-dev-shm-usage",
    "disable-extensions", "disable-default-apps", "metrics-recording-only", "disable-breakpad",
    "in-process-gpu",  # no process of its own for what there is not
    "disable-site-isolation-trials",  # one process shows all pages: to start one costs as a load
)  # fmt: skip
PHONE = (390, 844)
"""Width and height of a phone's window, px."""


def found() -> tuple[str, str] | None:
    """The programs chromium and chromedriver; None where one of them is missing."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def browsing(profile: Path) -> Iterator[Any]:
    """A browser (selenium's WebDriver) with an empty profile in a folder, until the block ends.
    Skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    programs = found()
    if programs is None:
        pytest.skip("there is no browser: install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in _FLAGS:
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(programs[1])
    browser = webdriver.Chrome(options=options, service=service)
    try:
        browser.set_script_timeout(20)
        yield browser
    finally:
        browser.quit()


def resize(browser: Any, width: int, height: int, dark: bool = False) -> None:
    """Gives the window a size, in px, and the system a light or a dark look, where nothing moves
    for ornament: that would be drawn sixty times a second."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    look = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    still = {"name": "prefers-reduced-motion", "value": "reduce"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [look, still]})


def visit(browser: Any, page: str, fragment: str, anew: bool = False) -> None:
    """Goes to a fragment of a page, such as "/cache", as a link there leads to it. The page is
    loaded if it is to be `anew`, and where the browser is on another page or there already."""
    here, _, at = browser.current_url.partition("#")
    if anew or here != page or at == fragment:
        browser.get("about:blank")
        browser.get(f"{page}#{fragment}")
        return
    run_script(
        browser,
        """const led = new Promise((tell) => addEventListener("hashchange", tell, { once: true }));
        location.hash = given[0];
        await led;""",
        fragment,
    )


def run_script(browser: Any, body: str, *given: Any) -> Any:
    """What the body of an asynchronous function returns in the page; `given` are its arguments.
    Raises AssertionError where it throws."""
    wrapped = (
        "const given = [...arguments], tell = given.pop();"
        f"(async (...given) => {{ {body} }})(...given)"
        ".then((value) => tell([value ?? null, null]), (error) => tell([null, `${error.stack}`]));"
    )
    value, error = browser.execute_async_script(wrapped, *given)
    assert error is None, error
    return value


def eventually(holds: Callable[[], Any], seconds: float = 10.0) -> Any:
    """What `holds` gives as soon as that is true; an AssertionError where it never is."""
    end = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < end, f"it did not come true within {seconds} s"
        time.sleep(0.05)
    return value


def complaints(browser: Any) -> list[str]:
    """What the browser's console has been told since the last call."""
    return [line["message"] for line in browser.get_log("browser")]
