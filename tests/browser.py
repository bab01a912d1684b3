"""Headless Chromium, driven by Playwright, for tests of HTML pages.

The helpers run axe's accessibility rules, evaluate JavaScript and measure the layout. All tests of
a process share one browser. Its event loop runs in a separate thread, since tests have event loops,
too.
"""

import asyncio
import atexit
import functools
import importlib.util
import shutil
import threading
import time
from pathlib import Path

import html5lib
from playwright.async_api import async_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                None)
WIDTHS = (360, 1280, 1920)
HEIGHT = 900
PATIENCE = 120_000  # time limit for a response from the browser, in ms
AXE = """
(function () {
  %s
  return axe.run(document, {resultTypes: ['violations']}).then(function (found) { return {
    violations: found.violations.map(function (v) {
      return [v.id, v.nodes.map(function (n) { return n.html.slice(0, 200); })]; }),
    wide: document.documentElement.scrollWidth > window.innerWidth,
    passes: found.passes.length, width: window.innerWidth, shown: document.title}; });
})()
"""


class Browser:
    """A Chromium process and the event loop that controls it."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="browser", daemon=True).start()
        self._playwright = self.do(async_playwright().start())
        self.chromium = self.do(self._playwright.chromium.launch(
            executable_path=CHROMIUM, timeout=PATIENCE,
            args=["--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                  "--disable-dev-shm-usage"]))
        atexit.register(self.close)

    def do(self, action):
        """Run a coroutine on the browser's event loop and return its result."""
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(2 * PATIENCE / 1000)

    def close(self):
        self.do(self.chromium.close())
        self.do(self._playwright.stop())


@functools.cache
def browser():
    """Return the browser that all tests in this process share."""
    return Browser()


@functools.cache
def axe_source():
    """Return the JavaScript source of axe, the accessibility checker."""
    spec = importlib.util.find_spec("axe_core_python")
    return (Path(spec.origin).parent / "axe.min.js").read_text() + "\n;0"


class Shown:
    """A browser page that tests can resize, click, type into and query."""

    def __init__(self, page, width, dark=False, reduced=False):
        self._browser = browser()
        self._context = self._do(self._browser.chromium.new_context(
            viewport={"width": width, "height": HEIGHT}, device_scale_factor=1,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if reduced else "no-preference"))
        self._context.set_default_timeout(PATIENCE)
        self._page = self._do(self._context.new_page())
        self._do(self._page.goto(page.resolve().as_uri()))

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self._do(self._context.close())

    def _do(self, action):
        return self._browser.do(action)

    def resize(self, width, height):
        """Change the size of the window, in CSS pixels."""
        self._do(self._page.set_viewport_size({"width": width, "height": height}))

    def media(self, name):
        """Emulate the CSS media type "print" or "screen"; an empty name means "screen"."""
        self._do(self._page.emulate_media(media=name or "screen"))

    def value(self, script):
        """Return the value of a JavaScript expression in the page."""
        return self._do(self._page.evaluate(script))

    def axe(self, act=""):
        """Run a script and then the accessibility checker axe in the page; return axe's results."""
        self.value(axe_source())
        return self.value(AXE % act)

    def wait_for(self, script):
        """Wait until a JavaScript expression in the page is true."""
        until = time.monotonic() + PATIENCE / 1000
        # Playwright's wait_for_function evaluates code, which the page's security policy forbids.
        while not self.value(f"Boolean({script})"):
            assert time.monotonic() < until, f"{script} has not become true"
            time.sleep(0.02)

    def click(self, selector, at=None):
        """Click an element with the mouse, in its middle or at (x, y) from its corner."""
        self._do(self._page.click(
            selector, position=None if at is None else {"x": at[0], "y": at[1]}))

    def press(self, key):
        """Press the key that has the given name in JavaScript keyboard events."""
        self._do(self._page.keyboard.press(key))


def checked(page, width, act="", dark=False):
    """Open a page at a given width, run a script and then axe, and return axe's results."""
    with Shown(page, width, dark) as shown:
        return shown.axe(act)


def measured(page, width, body):
    """Open a page at a given width and return the result of a JavaScript function body."""
    with Shown(page, width) as shown:
        return shown.value(f"(function () {{ {body} }})()")


def parse_errors(page):
    """Return the HTML syntax errors that html5lib finds in a page."""
    parser = html5lib.HTMLParser(strict=False)
    parser.parse(page.read_text())
    return [(place, code) for place, code, _more in parser.errors]
