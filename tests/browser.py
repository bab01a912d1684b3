"""Pages in headless Chromium: what axe finds in them, at a width, how they are laid out, and how
long they take."""

import html
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import html5lib

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                None)
WIDTHS = (360, 1280, 1920)
RESULT = re.compile(r'<pre id="found-in-page"[^>]*>(.*?)</pre>', re.DOTALL)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
MEASURE = """
window.addEventListener('load', function () {
  var pre = document.createElement('pre');
  pre.id = 'found-in-page';
  pre.hidden = true;
  pre.textContent = JSON.stringify((function () { %s })());
  document.body.appendChild(pre);
});
"""
RUN = """
window.addEventListener('load', function () {
  %s
  axe.run(document, {resultTypes: ['violations']}).then(function (found) {
    var pre = document.createElement('pre');
    pre.id = 'found-in-page';
    pre.textContent = JSON.stringify({
      violations: found.violations.map(function (v) {
        return [v.id, v.nodes.map(function (n) { return n.html.slice(0, 200); })]; }),
      wide: document.documentElement.scrollWidth > window.innerWidth,
      passes: found.passes.length, width: window.innerWidth, shown: document.title});
    document.body.appendChild(pre);
  });
});
"""


def axe_source():
    spec = importlib.util.find_spec("axe_core_python")
    return (Path(spec.origin).parent / "axe.min.js").read_text()


def chromium(*words, timeout=120):
    return subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--disable-dev-shm-usage", *words], capture_output=True, text=True, check=False,
        timeout=timeout)


def framed(page, width, folder, name, scripts, dark=False):
    """What scripts say of a page, in an element; at a width."""
    text = POLICY.sub("", page.read_text())
    copy = folder / f"{page.stem}-{width}-{name}.html"
    tags = "".join(f"<script>{script}</script>" for script in scripts)
    copy.write_text(text.replace("</body>", f"{tags}</body>"))
    # Chromium's window is at least 500 pixels wide: narrower ones are frames in it.
    frame = folder / f"{page.stem}-{width}-frame.html"
    frame.write_text(f"<!DOCTYPE html><title>frame</title><iframe id=f src='{copy.name}' "
                     f"style='width:{width}px;height:900px;border:0'></iframe><script>"
                     "setInterval(function () { var at = document.getElementById('f')"
                     ".contentDocument.getElementById('found-in-page'); if (at && "
                     "!document.getElementById('found-in-page')) document.body.appendChild("
                     "at.cloneNode(true)); }, 50);</script>")
    options = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    done = chromium("--allow-file-access-from-files", "--virtual-time-budget=60000",
                    f"--window-size={max(width, 500)},900", *options, "--dump-dom",
                    frame.as_uri())
    found = RESULT.search(done.stdout)
    assert found, (done.returncode, done.stderr[-500:], len(done.stdout))
    return json.loads(html.unescape(found[1]))


def checked(page, width, folder, act="", dark=False):
    """What axe says of a page, at a width; ``act`` is done in it first."""
    return framed(page, width, folder, "axe", [axe_source(), RUN % act], dark)


def measured(page, width, folder, body):
    """What a function with that body returns in a page, at a width: styles, layout."""
    return framed(page, width, folder, "measured", [MEASURE % body])


def parse_errors(page):
    """What is not HTML in a page, by html5lib's parser."""
    parser = html5lib.HTMLParser(strict=False)
    parser.parse(page.read_text())
    return [(place, code) for place, code, _more in parser.errors]
