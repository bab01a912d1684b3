import importlib
import importlib.metadata
import sys

import pytest

from emu.host.fingerprint import fingerprint, version_of


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "made_for_this"
    (folder / "below").mkdir(parents=True)
    for path in (folder, folder / "below"):
        (path / "__init__.py").write_text("")
    (folder / "one.py").write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    fingerprint.cache_clear()
    yield folder
    for name in [n for n in sys.modules if n.startswith("made_for_this")]:
        del sys.modules[name]
    fingerprint.cache_clear()


def taken(*modules, distributions=()):
    fingerprint.cache_clear()
    return fingerprint(modules, distributions)


def test_the_fingerprint_depends_on_file_contents(package):
    before = taken("made_for_this")
    assert before == taken("made_for_this") and len(before) == 16
    (package / "one.py").write_text("ONE = 2\n")
    changed = taken("made_for_this")
    assert changed != before
    (package / "two.py").write_text("")
    assert taken("made_for_this") not in (before, changed)


def test_only_named_modules_are_fingerprinted(package):
    before = taken("made_for_this.one")
    (package / "__init__.py").write_text("OTHER = 1\n")
    (package / "below" / "__init__.py").write_text("OTHER = 1\n")
    (package / "notes.txt").write_text("no code")
    assert taken("made_for_this.one") == before
    whole = taken("made_for_this")
    (package / "below" / "__init__.py").write_text("OTHER = 2\n")
    assert taken("made_for_this") == whole
    assert taken("made_for_this.below") != whole


@pytest.mark.parametrize("name", ["unicorn", "capstone", "keystone-engine", "pyelftools"])
def test_the_version_comes_from_distribution_metadata(name):
    assert version_of(name) == importlib.metadata.version(name)


def test_the_fingerprint_depends_on_distribution_versions(monkeypatch):
    before = taken(distributions=("unicorn",))
    monkeypatch.setattr("emu.host.fingerprint.version_of", lambda name: "0.0")
    assert taken(distributions=("unicorn",)) != before


def test_a_missing_distribution_is_reported():
    with pytest.raises(ImportError, match="no-such-distribution"):
        version_of("no-such-distribution")


def test_a_missing_module_is_reported(package):
    with pytest.raises(ImportError, match=r"made_for_this\.none"):
        taken("made_for_this.none")
