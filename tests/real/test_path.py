"""Tests of ``kinst path`` on FreeBSD: the page's numbers are those of the recording."""

import json
import random
import subprocess
import sys

import pytest

from images.recordings import played
from tests.browser import CHROMIUM, Shown
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run
from tests.path_page import Counts, compare

MOMENTS = 50
MOST_BYTES = 5_000_000


def path(*words):
    return subprocess.run([sys.executable, "-m", "kinst_emu.commands.kinst", "path", *words],
                          capture_output=True, text=True, check=False, timeout=900)


@pytest.fixture(scope="module", params=ARCHES)
def recording(request, tmp_path_factory):
    image, file = real_kernel(request.param), tmp_path_factory.mktemp("path") / "cat.rec"
    done = path("-k", str(image.path), "$ cat /etc/motd", "--of", "open", "--depth", "9", "-o",
                str(file))
    assert done.returncode == 0, done.stderr
    assert "sys_open() of cat, call 1 of 1" in done.stdout
    assert "vn_open_cred" in done.stdout and "namei" in done.stdout
    return file


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("call", ["open", "execve"])
def test_the_page_shows_what_the_recording_has_at_random_moments(recording, call, tmp_path):
    page = tmp_path / "path.html"
    done = path(str(recording), "--of", call, "--html", str(page))
    assert done.returncode == 0, done.stderr
    player, counts = played(recording, None, 2 * 10**9, ()), Counts()
    with Shown(page, 1280) as shown:
        shown.wait_for("window.view")
        count = shown.value("view.path.count")
        assert count > 10_000
        for moment in sorted(random.Random(58).sample(range(count), MOMENTS)):
            compare(player, shown, moment, counts)
        found = shown.axe()
    assert found["violations"] == [] and not found["wide"], found
    assert counts.equal > MOMENTS and counts.callers > 10, vars(counts)
    assert counts.registers > 15 * MOMENTS, vars(counts)
    assert page.stat().st_size < MOST_BYTES


def test_two_calls_part_where_the_file_system_finds_the_name(arch):
    """``mkdir`` of an existing name: every function on the way back parts because of EEXIST."""
    done = path("-k", str(real_kernel(arch).path), "$ mkdir /a", "--of", "mkdir", "--against",
                "$ mkdir /etc", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout[done.stdout.index("{"):])
    partings = {parting["function"]: parting for parting in found["partings"]}
    assert {"cache_fplookup_final_modifying", "namei", "kern_mkdirat"} <= set(partings)
    values = [{one["value"] for one in branch["compared"] if not one["constant"]}
              for branch in partings["kern_mkdirat"]["branches"]]
    assert values == [{0}, {17}]
    calls = {(call["match"], call["name"]) for call in found["calls"]}
    assert {("different", "namei"), ("first", "ufs_mkdir")} <= calls
    assert not any(match == "second" and name == "ufs_mkdir" for match, name in calls)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
def test_the_page_has_the_locks_that_the_thread_holds(recording, tmp_path):
    page = tmp_path / "open.html"
    assert path(str(recording), "--of", "open", "--html", str(page)).returncode == 0
    done = run("kinst", "locks", str(recording), "--of", "open", "--json")
    wanted = {(f"{one['kind']} {one['name']}".strip(), f"{one['address']:x}", one["acquired"],
               one["where"]) for one in json.loads(done.stdout)["locks"]
              if one["thread_name"] == "cat"}
    with Shown(page, 1280) as shown:
        shown.wait_for("window.view")
        locks = shown.value("""view.path.locks.map(one => [one.name, one.address.toString(16),
          one.begin < 0 ? null : view.path.position(one.begin), one.where])""")
        assert set(map(tuple, locks)) == wanted and len(wanted) > 20
        for number in random.Random(58).sample(range(len(locks)), 10):
            begin, end = shown.value(f"[view.path.locks[{number}].begin, view.path.locks[{number}"
                                     "].end]")
            for moment, held in ((begin, False), (begin + 1, True), (end, True), (end + 1, False)):
                if not 0 <= moment < shown.value("view.path.count"):
                    continue
                shown.value(f"view.go({moment})")
                shown.value("view.render()")
                text = shown.value("document.getElementById('locks').innerText")
                assert (f"moment {begin}:" in text) == held, (number, moment, text)
