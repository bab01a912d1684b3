"""Tests of the cache of compiled native modules, which the setup uses."""

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "native_cache.py"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the script as a module, and the one compiled module of its tree."""
    spec = importlib.util.spec_from_file_location("native_cache", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tree = tmp_path / "tree"
    (tree / "emu/elf").mkdir(parents=True)
    (tree / "setup.py").write_text("")
    (tree / "emu/elf/_rows.pyx").write_text("first")
    compiled = tree / f"emu/elf/_rows{sysconfig.get_config_var('EXT_SUFFIX')}"
    compiled.write_bytes(b"compiled")
    monkeypatch.setattr(module, "ROOT", tree)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return SimpleNamespace(script=module, compiled=compiled)


def test_modules_are_found_again_for_the_same_sources_only(cache):
    assert cache.script.main(["get"]) == 1
    assert cache.script.main(["put"]) == 0
    cache.compiled.unlink()
    assert cache.script.main(["get"]) == 0
    assert cache.compiled.read_bytes() == b"compiled"
    cache.compiled.unlink()
    (cache.script.ROOT / "emu/elf/_rows.pyx").write_text("second")
    assert cache.script.main(["get"]) == 1 and not cache.compiled.exists()


@pytest.mark.parametrize("change", ["flags", "setup.py", "_other.pxi"])
def test_options_and_included_files_count(cache, change, monkeypatch):
    cache.script.main(["put"])
    if change == "flags":
        monkeypatch.setenv("CFLAGS", "-O0")
    else:
        (cache.script.ROOT / ("emu/" * change.startswith("_") + change)).write_text("changed")
    assert cache.script.main(["get"]) == 1


def test_a_damaged_set_is_not_used(cache):
    cache.script.main(["put"])
    kept = cache.script.cache() / cache.script.key() / cache.compiled.relative_to(cache.script.ROOT)
    cache.compiled.unlink()
    for damage in (b"compile", b""):
        kept.write_bytes(damage)
        assert cache.script.main(["get"]) == 1 and not cache.compiled.exists()
    (kept.parents[2] / cache.script.SUMS).write_text("nonsense")
    assert cache.script.main(["get"]) == 1


def test_few_sets_are_kept_and_clear_removes_all(cache):
    for number in range(cache.script.KEPT + 3):
        (cache.script.ROOT / "setup.py").write_text(str(number))
        cache.script.main(["put"])
    assert len(list(cache.script.cache().iterdir())) == cache.script.KEPT
    assert cache.script.main(["get"]) == 0  # the last one
    cache.script.main(["clear"])
    assert not cache.script.cache().exists()


def test_a_cache_that_cannot_be_written_is_reported_and_does_no_harm(cache, tmp_path, capsys):
    (tmp_path / "cache").write_text("a file")
    assert cache.script.main(["put"]) == 0
    assert "not written" in capsys.readouterr().err
    assert cache.script.main(["get"]) == 1


def test_other_words_are_refused():
    done = subprocess.run([sys.executable, SCRIPT, "fetch"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2 and done.stderr == "usage: native_cache.py get|put|clear\n"
