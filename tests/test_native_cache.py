"""Tests of the cache of compiled native modules, which the setup uses."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "native_cache.py"
# A stand-in for setup.py: like setuptools, it builds a module only if its source is newer.
SETUP = """
import os, pathlib, sys
source, module = pathlib.Path("emu/elf/_rows.pyx"), pathlib.Path({module!r})
if "--force" in sys.argv or not module.exists() or (
        module.stat().st_mtime_ns < source.stat().st_mtime_ns):
    module.write_text(source.read_text() + os.environ.get("CFLAGS", "") + "{more}")
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the script as a module, and the one compiled module of its tree."""
    spec = importlib.util.spec_from_file_location("native_cache", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tree = tmp_path / "tree"
    (tree / "emu/elf").mkdir(parents=True)
    compiled = tree / f"emu/elf/_rows{sysconfig.get_config_var('EXT_SUFFIX')}"
    (tree / "setup.py").write_text(SETUP.format(module=str(compiled), more=""))
    (tree / "emu/elf/_rows.pyx").write_text("first")
    monkeypatch.setattr(module, "ROOT", tree)
    monkeypatch.setattr(module, "BUILT", tree / "build/native-environment")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CFLAGS", raising=False)
    return SimpleNamespace(script=module, tree=tree, compiled=compiled, run=module.main)


def test_modules_are_found_again_for_the_same_sources_only(cache):
    assert cache.run(["get"]) == 1
    assert cache.run(["build"]) == 0
    assert cache.compiled.read_text() == "first"
    cache.compiled.unlink()
    assert cache.run(["get"]) == 0
    assert cache.compiled.read_text() == "first"
    (cache.tree / "emu/elf/_rows.pyx").write_text("second")
    assert cache.run(["get"]) == 1
    assert cache.run(["build"]) == 0 and cache.compiled.read_text() == "second"


@pytest.mark.parametrize("change", ["flags", "setup.py"])
def test_a_changed_environment_compiles_everything_again(cache, change, monkeypatch):
    """Otherwise, old modules would be kept under the new key."""
    cache.run(["build"])
    if change == "flags":
        monkeypatch.setenv("CFLAGS", "-O0")
    else:
        (cache.tree / "setup.py").write_text(SETUP.format(module=str(cache.compiled), more="-O0"))
    assert cache.run(["get"]) == 1
    cache.run(["build"])
    cache.compiled.unlink()
    assert cache.run(["get"]) == 0 and cache.compiled.read_text() == "first-O0"


def test_included_files_count(cache):
    cache.run(["build"])
    (cache.tree / "emu/_other.pxi").write_text("changed")
    assert cache.run(["get"]) == 1


def test_a_module_whose_source_changes_during_the_build_is_not_kept(cache):
    setup = cache.tree / "setup.py"
    setup.write_text(setup.read_text() + "source.write_text('changed')\n")
    assert cache.run(["build"]) == 0
    assert cache.run(["get"]) == 1


def test_a_module_without_a_source_is_not_kept(cache):
    stale = cache.compiled.with_name(cache.compiled.name.replace("_rows", "_old"))
    stale.write_text("stale")
    cache.run(["build"])
    stale.unlink()
    assert cache.run(["get"]) == 0 and not stale.exists()


def test_a_failing_build_is_not_kept(cache):
    (cache.tree / "setup.py").write_text("raise SystemExit(3)")
    assert cache.run(["build"]) == 3
    assert cache.run(["get"]) == 1


def test_a_damaged_set_is_not_used(cache):
    cache.run(["build"])
    kept = (cache.script.cache() / cache.script.key()
            / cache.compiled.relative_to(cache.script.ROOT))
    cache.compiled.unlink()
    for damage in (b"firs", b""):
        kept.write_bytes(damage)
        assert cache.run(["get"]) == 1 and not cache.compiled.exists()
    (kept.parents[2] / cache.script.SUMS).write_text("nonsense")
    assert cache.run(["get"]) == 1


def test_a_module_in_use_is_replaced_not_overwritten(cache):
    cache.run(["build"])
    before = cache.compiled.stat().st_ino
    with cache.compiled.open() as used:
        assert cache.run(["get"]) == 0
        assert used.read() == "first" and cache.compiled.stat().st_ino != before


def test_few_sets_are_kept_and_clear_removes_all(cache):
    for number in range(cache.script.KEPT + 3):
        (cache.tree / "emu/elf/_rows.pyx").write_text(str(number))
        cache.run(["build"])
    assert len(list(cache.script.cache().iterdir())) == cache.script.KEPT
    assert cache.run(["get"]) == 0  # the last one
    cache.run(["clear"])
    assert not cache.script.cache().exists()


def test_what_a_killed_process_has_left_is_removed_after_a_day(cache):
    old, new = (cache.script.cache() / f"part-{name}" for name in ("old", "new"))
    old.mkdir(parents=True)
    new.mkdir()
    os.utime(old, (0, 0))
    cache.run(["build"])
    assert not old.exists() and new.exists()


def test_without_a_cache_or_a_compiler_nothing_is_lost(cache, tmp_path, capsys, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    assert cache.run(["build"]) == 0 and cache.compiled.read_text() == "first"
    assert "native_cache.py: " in capsys.readouterr().err
    assert cache.run(["get"]) == 1
    monkeypatch.setenv("CC", str(tmp_path / "missing"))
    assert cache.run(["get"]) == 1


def test_other_words_are_refused():
    done = subprocess.run([sys.executable, SCRIPT, "fetch"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2 and done.stderr == "usage: native_cache.py get|build|clear\n"
