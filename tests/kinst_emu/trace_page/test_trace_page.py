"""Tests that the trace page agrees with the trace."""

import html
import json
import random
import re
from collections import Counter

import pytest

from kinst_emu.trace_page.collected import Collected, HotFunction, HotInstruction
from kinst_emu.trace_page.page import FIRST, page
from kinst_emu.trace_page.timeline import timeline
from tests.browser import CHROMIUM, WIDTHS, checked, parse_errors
from tests.conftest import ARCHES
from tests.kinst_emu.commands.test_commands import refused, run

CALL = 'strtoul("-0x12zz", 0, 16)'
LARGEST = 3 << 20
OPENED = 2_000  # maximum time for opening a page, in ms
ROW = re.compile(r'<tr class="h(\d)"><td class="n"><i>(\d*)</i></td><td class="n">(\d+)</td>')


def traced(tmp_path, arch, *words):
    path = tmp_path / "trace.html"
    done = run("kdtrace", "-k", f"teaching/{arch}", *words, "-c", CALL, "--report", str(path))
    assert done.returncode == 0, done.stderr
    return done.stdout, path.read_text()


def listed(text):
    """Return the (time, probe) pairs of the firings that a page lists."""
    part = text[text.index('id="firings"'):]
    return [(int(time), html.unescape(probe)) for time, probe in re.findall(
        r'<tr><td class="n">(\d+)</td><td>([^<]*)</td></tr>', part)]


def flames(text):
    """Return a counter of the firings that a page's flame graph shows for each function."""
    found = Counter()
    for name, count in re.findall(r"<title>([^<]*): (\d+) firings [^<]*</title>", text):
        found[html.unescape(name)] += int(count)
    return found


def since_first(firings):
    """Return (time, probe) pairs with times relative to the first firing."""
    return [(time - firings[0][0], probe) for time, probe in firings]


@pytest.mark.parametrize("arch", ARCHES)
def test_times_follow_the_guest_clock_even_when_idle(tmp_path, arch):
    path = tmp_path / "boot.html"
    done = run("kdtrace", "-k", f"teaching/{arch}", "-q", "--json", "-n",
               "fbt::uart_put:entry { trace(timestamp); }", "-c", "boot", "--report", str(path))
    timestamps = [row["actions"][0]["value"] for row in map(json.loads, done.stdout.splitlines())
            if "actions" in row]
    assert len(timestamps) > 10
    assert [time for time, _probe in listed(path.read_text())] == timestamps[:FIRST]


@pytest.mark.parametrize("arch", ARCHES)
def test_counts_times_and_stacks_agree_with_the_trace(tmp_path, arch):
    printed, text = traced(tmp_path, arch, "-n", "kinst::strtoul: { trace(timestamp); }",
                           "--json")
    rows = [json.loads(line) for line in printed.splitlines()]
    fired = [(row["actions"][0]["value"], row["probe"]) for row in rows if "probe" in row]
    assert len(fired) > 40 and since_first(listed(text)) == since_first(fired[:FIRST])
    counts = Counter(int(probe.rpartition(":")[2]) for _time, probe in fired)
    shown = {int(offset): int(count) for _heat, count, offset in ROW.findall(text) if count}
    assert {offset: count for offset, count in shown.items() if count} == dict(counts)
    heats = {int(offset): int(heat) for heat, _count, offset in ROW.findall(text)}
    hottest = max(counts, key=lambda offset: counts[offset])
    assert heats[hottest] == 9 and all(heats[o] <= heats[hottest] for o in counts)
    assert f"{len(fired)} firings" in text
    printed, text = traced(tmp_path, arch, "-n", "kinst::strtoul:", "--stack", "-q")
    assert flames(text)["kernel`strtoul"] == len(fired)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_d_program_page_has_the_same_firings_and_its_aggregations(tmp_path, arch):
    printed, _text = traced(tmp_path, arch, "-n", "kinst::strtoul: { trace(timestamp); }",
                           "--json")
    plain = [(row["actions"][0]["value"], row["probe"])
             for row in map(json.loads, printed.splitlines()) if "probe" in row]
    _printed, text = traced(tmp_path, arch, "-q", "-n", "kinst::strtoul: { @n[probename] = "
                            "count(); @s[stack()] = count(); @q = quantize(timestamp); }")
    assert since_first(listed(text)) == since_first(plain[:FIRST])
    aggregated = text[text.index('id="aggregations"') : text.index('id="stacks"')]
    counts = Counter(probe.rpartition(":")[2] for _time, probe in plain)
    pairs = dict(re.findall(r'<tr><td>(\d+)</td><td class="n">(\d+)</td>', aggregated))
    assert {name: int(count) for name, count in pairs.items() if name in counts} == {
        name: counts[name] for name in pairs if name in counts}
    assert set(counts) <= set(pairs) or len(counts) > 40
    assert "@q = quantize()" in aggregated
    assert flames(text)["all"] == flames(text)["kernel`strtoul"] == len(plain)
    assert not [name for name in flames(text) if "+0x" in name]


def test_a_report_does_not_change_the_digest(tmp_path):
    digests = []
    for more in ([], ["--report", str(tmp_path / "a.html")]):
        done = run("kdtrace", "-k", "teaching/riscv64", "-q", "-n",
                   "fbt::: { @[probefunc] = count(); }", "-c", CALL, "--digest", *more)
        digests.append([line for line in done.stdout.splitlines() if line.startswith("digest")])
    assert digests[0] == digests[1] != []


@pytest.mark.parametrize(("words", "said"), [
    (["-l", "-n", "kinst::strlen:", "--report", "x.html"], "--report"),
    (["-l", "-n", "kinst::strlen: { exit(0); }", "--report", "x.html"], "--report"),
    (["-e", "-n", "kinst::strlen: { exit(0); }", "--report", "x.html"], "--report"),
    (["-n", "kinst::strlen:", "-c", 'strlen("a")', "--report", "/no/such/x.html"], "--report"),
    (["-n", "kinst::strlen: { exit(0); }", "-c", 'strlen("a")', "--report", "/no/x.html"],
     "--report")])
def test_an_impossible_report_is_refused_before_anything_runs(words, said):
    refused(run("kdtrace", "-k", "teaching/arm64", *words), said, "dtrace")


def large(firings):
    """Return a trace of the largest size that a page supports."""
    generator = random.Random(1)
    trace = Collected("teaching/amd64", "boot")
    names = [f"function_{n}" for n in range(200)]
    for number in range(2_000):
        trace.names[number] = f"kinst:kernel:{names[number % 200]}:{number}"
        trace.functions[number] = names[number % 200]
    for time in range(firings):
        trace.firing(10 * time, generator.randrange(2_000))
    for number in range(6_000):
        trace.stack("@s = count()",
                    [f"kernel`{generator.choice(names)}+0x{n:x}" for n in range(12)],
                    number % 7 + 1)
    for number in range(60):
        trace.aggregations.append({"aggregation": f"@a{number}", "function": "count", "rows": [
            {"keys": [names[n]], "value": generator.randrange(10_000)} for n in range(200)]})
    for n in range(150):
        trace.code.append(HotFunction(names[n], "kernel", 26, [
            HotInstruction(4 * i, 0x1000 + 4 * i, "ldp x29, x30, [sp, #0x10] <&>", "copy",
                 f"kern/kern_{n}.c:{i}", "x = <y>;", i) for i in range(26)]))
    return trace


@pytest.fixture(scope="module")
def largest(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "large.html"
    path.write_text(page(large(100_000)))
    return path


def test_a_page_of_100000_firings_is_valid_html_and_small(largest):
    assert largest.stat().st_size < LARGEST
    assert not parse_errors(largest)
    assert "http://" not in largest.read_text() and "https://" not in largest.read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_no_problems_in_a_trace_page(tmp_path, width):
    traced(tmp_path, "amd64", "-q", "-n",
           "kinst::str*: { @n[probename] = count(); @s[stack()] = count(); }")
    found = checked(tmp_path / "trace.html", width)
    assert not found["violations"] and not found["wide"] and found["passes"] > 10, found


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
def test_the_search_finds_instructions_and_functions(largest, tmp_path):
    act = """
      var box = document.getElementById('search');
      function say(word) { box.value = word; box.dispatchEvent(new Event('input'));
        return document.getElementById('found').textContent + '/'
          + document.querySelectorAll('details.code:not([hidden])').length; }
      document.title = [say('function_149'), say('kern_7.c'), say('nothing such'),
        say('')].join('|');
      document.body.replaceChildren(document.createElement('main'));
    """
    shown = checked(largest, 1280, act)["shown"].split("|")
    assert shown == ["1 functions, 26 instructions/1", "1 functions, 26 instructions/1",
                     "0 functions, 0 instructions/0", "/150"]


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
def test_the_page_of_100000_firings_opens_in_two_seconds(largest, tmp_path):
    act = """
      document.title = String(performance.now());
      document.body.replaceChildren(document.createElement('main'));
    """
    took = min(float(checked(largest, 1280, act)["shown"]) for _ in range(2))
    assert 0 < took < OPENED


@pytest.mark.parametrize(("period", "count"), [(1, 21), (1, 9), (1, 120), (5, 400), (4, 64)])
def test_a_steady_rate_of_firings_has_one_color(period, count):
    trace = Collected("teaching/amd64", "boot", names={0: "fbt:kernel:f:entry"},
                      functions={0: "f"})
    for number in range(count):
        trace.firing(35 + period * number, 0)
    trace.firing(35 + period * count - 1, 0)
    drawn = timeline(trace)
    # The extra firing at the end extends the time span.  One column may therefore have one firing
    # more than the others, and a second color.
    assert drawn.columns >= 8 and len(drawn.rows[0].paths) <= 2
    cells = [path.count("M") for _opacity, path in drawn.rows[0].paths]
    assert sorted(cells)[:-1] in ([], [1])
