"""Tests of kernels with systems on their disks: clocks, boot flags, build dates."""

import argparse
from dataclasses import replace
from types import SimpleNamespace

import pytest

from emu.elf.boot_options import MAX_DATE
from emu.guests.registry import FREEBSD
from emu.host.errors import ImageError, KinstError
from images import build_date as build_date_module
from images import catalog
from images.build_date import UNKNOWN, build_date
from images.systems import NO_CLOCK, dated, with_disks
from kinst_emu.cli.boot_words import parse_date
from tests.kinst_emu.commands.test_commands import refused, run


class Built:
    """Stand-in for a FreeBSD kernel with a version string."""

    def __init__(self, text):
        self.text = text
        self.symbols = SimpleNamespace(find=lambda name: None if text is None else SimpleNamespace(
            address=0, size=len(text)) if name == "version" else None)

    def virtual_to_file(self, address, size):
        return self.text[address : address + size]


@pytest.fixture
def freebsd(monkeypatch):
    """Let every image be a FreeBSD kernel for amd64."""
    monkeypatch.setattr(build_date_module, "arch_of", lambda _image: SimpleNamespace(name="amd64"))
    monkeypatch.setattr(build_date_module, "guest_of", lambda _image, _arch: FREEBSD["amd64"])


@pytest.mark.parametrize("text, seconds", [
    (b"FreeBSD 16.0-CURRENT #0: Sat Nov 28 05:15:09 UTC 2026\n    root@x:/obj", 1795842909),
    (b"FreeBSD 15.0 #0 main: Tue Dec  2 00:00:00 UTC 2025\n", 1764633600),
    (b"FreeBSD 15.0-RELEASE releng/15.0-n1 GENERIC\n", UNKNOWN),
    (b"FreeBSD #0: Sat Foo 28 05:15:09 UTC 2026\n", UNKNOWN),
    (b"FreeBSD #0: Sat Feb 31 05:15:09 UTC 2026\n", UNKNOWN),
    (b"FreeBSD #0: Sat Feb 28 05:15:09 UTC 9999\n", MAX_DATE),
    (b"FreeBSD #0: Sat Feb 28 05:15:09 UTC 1950\n", 0),
    (b"", UNKNOWN), (None, UNKNOWN),
])
def test_the_build_date_is_read_from_the_version_string(freebsd, text, seconds):
    assert build_date(Built(text)) == seconds


def test_a_teaching_kernel_has_the_date_of_the_release():
    assert build_date(catalog.find("teaching/amd64")) == UNKNOWN


@pytest.mark.parametrize("text, seconds", [
    ("1970-01-01", 0), ("2026-01-31", 1769817600), ("2026-01-31T12:00", 1769860800),
    ("2026-01-31T12:00+02:00", 1769853600), ("2106-02-07T06:28:15", MAX_DATE), ("none", NO_CLOCK),
])
def test_dates_are_utc_unless_they_say_otherwise(text, seconds):
    assert parse_date(text) == seconds


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "1969-12-31", "2106-02-08", "0"])
def test_a_date_that_the_clocks_cannot_show_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        parse_date(text)


@pytest.mark.parametrize("date", [-2, MAX_DATE + 1, "2026", 1.5, True])
def test_a_date_in_python_must_be_a_number_of_seconds(date):
    with pytest.raises(KinstError, match=r"date .*: must be a number of seconds"):
        dated(catalog.find("teaching/amd64"), date)


def test_a_machine_without_disk_has_no_clock_unless_a_date_is_given():
    image = catalog.find("teaching/arm64")
    assert dated(image, None).options.date is None and dated(image, 5).options.date == 5
    assert dated(image, NO_CLOCK).options.date is None


def test_a_base_system_that_was_not_fetched_is_named():
    image = replace(catalog.find("teaching/amd64"))
    with pytest.raises(ImageError, match="its base system is not installed; run: kinst images"):
        with_disks(image, [], base=True)


@pytest.mark.parametrize("words, says", [
    (["--single"], "single-user mode needs a system on a disk"),
    (["--multi", "--append", "-sv"], "--multi: contradicts the flag s in --append -sv"),
    (["--base", "--write"], "its base system is not installed"),
    (["--net", "peer"], "the teaching kernel has no drivers"),
    (["--entropy", "x"], "the teaching kernel has no drivers"),
])
def test_options_of_systems_that_make_no_sense_are_refused(words, says):
    refused(run("kinst", "boot", "-k", "teaching/amd64", *words), says)


@pytest.mark.parametrize("value", ["", ",", "peer,", ",out.pcap"])
def test_a_malformed_network_is_refused(value):
    result = run("kinst", "boot", "-k", "teaching/amd64", "--net", value)
    assert result.returncode == 2 and "is not 'peer', 'peer:FOLDER' or a pcap" in result.stderr
