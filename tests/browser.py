"""Pages in headless Chromium: what axe finds in them, at a width, how they are laid out, and how
long they take.

One browser for all tests of a process, spoken to by the DevTools protocol over a pipe: it ends when
the pipe does.
"""

import atexit
import fcntl
import functools
import importlib.util
import itertools
import json
import os
import select
import shutil
import tempfile
import time
from pathlib import Path

import html5lib

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                None)
WIDTHS = (360, 1280, 1920)
HEIGHT = 900
PATIENCE = 120  # s for an answer
KEY_CODES = {"End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}  # Windows' numbers
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
    """Chromium at the other end of a pipe: JSON, each message with a zero byte behind it."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-")
        (its_input, self._to), (self._from, its_output) = os.pipe(), os.pipe()
        # It reads 3 and writes 4, whatever is there now.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (its_input, its_output)]
        self._pid = os.posix_spawn(CHROMIUM, [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe",
            f"--user-data-dir={self._profile.name}"], os.environ, file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4)])
        for end in (its_input, its_output, *ends):
            os.close(end)
        self._numbers = itertools.count(1)
        self._held = b""
        self._events = []
        atexit.register(self.close)

    def close(self):
        os.close(self._to)
        os.waitpid(self._pid, 0)
        os.close(self._from)
        self._profile.cleanup()

    def _message(self, until):
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._from], [], [], max(until - time.monotonic(), 0))
            assert ready, f"Chromium was silent for {PATIENCE} s"
            piece = os.read(self._from, 1 << 20)
            assert piece, "Chromium has ended"
            self._held += piece
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)

    def ask(self, method, session=None, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        rest = json.dumps(message).encode() + b"\0"
        while rest:
            rest = rest[os.write(self._to, rest):]
        until = time.monotonic() + PATIENCE
        while True:
            answer = self._message(until)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._events.append((answer.get("sessionId"), answer.get("method")))

    def navigate(self, session, url):
        self._events.clear()
        self.ask("Page.navigate", session, url=url)
        self.wait(session, "Page.loadEventFired")

    def wait(self, session, event):
        until = time.monotonic() + PATIENCE
        while (session, event) not in self._events:
            answer = self._message(until)
            self._events.append((answer.get("sessionId"), answer.get("method")))

@functools.cache
def browser():
    return Browser()


@functools.cache
def axe_source():
    spec = importlib.util.find_spec("axe_core_python")
    return (Path(spec.origin).parent / "axe.min.js").read_text() + "\n;0"


class Shown:
    """A page that has loaded, at a width, and what a user does there."""

    def __init__(self, page, width, dark=False, reduced=False):
        self._browser = browser()
        self._target = self._browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._browser.ask("Target.attachToTarget", targetId=self._target,
                                          flatten=True)["sessionId"]
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT,
                 deviceScaleFactor=1, mobile=False)
        self._features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced else "no-preference"}]
        self.media("")
        self.ask("Page.enable")
        self._browser.navigate(self._session, page.resolve().as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self._browser.ask("Target.closeTarget", targetId=self._target)

    def ask(self, method, **parameters):
        return self._browser.ask(method, session=self._session, **parameters)

    def media(self, name):
        """Screen (empty) or print."""
        self.ask("Emulation.setEmulatedMedia", media=name, features=self._features)

    def value(self, script):
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True,
                         awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def axe(self, act=""):
        self.value(axe_source())
        return self.value(AXE % act)

    def wait_for(self, script):
        until = time.monotonic() + PATIENCE
        while not self.value(f"Boolean({script})"):
            assert time.monotonic() < until, f"{script}: never"
            time.sleep(0.02)

    def click(self, selector):
        """In the middle of an element, with the mouse."""
        x, y = self.value(f"""(function () {{ var one = document.querySelector('{selector}');
          one.scrollIntoView({{block: 'center'}}); var box = one.getBoundingClientRect();
          return [box.left + box.width / 2, box.top + box.height / 2]; }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        """A key, named as a page's events do."""
        text = {"text": key} if len(key) == 1 else {}
        code = KEY_CODES.get(key, ord(key.upper()) if len(key) == 1 else 0)
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code,
                 **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


def checked(page, width, act="", dark=False):
    """What axe says of a page, at a width; ``act`` is done in it first."""
    with Shown(page, width, dark) as shown:
        return shown.axe(act)


def measured(page, width, body):
    """What a function with that body returns in a page, at a width: styles, layout."""
    with Shown(page, width) as shown:
        return shown.value(f"(function () {{ {body} }})()")


def parse_errors(page):
    """What is not HTML in a page, by html5lib's parser."""
    parser = html5lib.HTMLParser(strict=False)
    parser.parse(page.read_text())
    return [(place, code) for place, code, _more in parser.errors]
