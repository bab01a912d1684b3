"""Tests of the output and exit status of commands that run as processes."""

import argparse
import json
import re
from xml.etree import ElementTree

import pytest

from emu.host.errors import KinstError
from images import catalog
from kinst.probes.breakpoints import PATHS
from kinst_emu.commands import boot
from tests.elfwriter import Elf
from tests.forked import completed

ABSENT = "absent"


def run(program, *words, stdin=None):
    module = {"kinst": "kinst_emu.commands.kinst", "kdtrace": "kinst_emu.commands.kdtrace"}[program]
    return completed(module, words, stdin)


def placed(words, directory):
    """Return the words of a command with ABSENT replaced by the path of a missing file."""
    return [str(directory / word) if word == ABSENT else word for word in words]


def refused(result, says, program="kinst"):
    """Assert that a command exited with status 1 and a one-line error."""
    assert result.returncode == 1, result
    assert says in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith(f"{program}: ")


def test_boot_streams_the_console_and_ends_with_statistics(arch):
    result = run("kinst", "boot", "-k", f"teaching/{arch}", "--type", r"strings\r")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "The teaching kernel" and "5 3610a686" in lines
    assert re.fullmatch(r"\d+ instructions, \d+\.\d+ virtual seconds, \d+\.\d+ wall seconds",
                        lines[-1])


def test_boots_in_two_processes_have_equal_digests(arch):
    digests = {json.loads(run("kinst", "boot", "-k", f"teaching/{arch}", "--digest", "--json")
                          .stdout)["digest"] for _ in range(2)}
    assert len(digests) == 1


def test_boot_reads_keyboard_input_from_a_pipe():
    result = run("kinst", "boot", "-k", "teaching/arm64", "-i", stdin="strings\nlesson\n")
    assert result.returncode == 0
    assert "5 3610a686" in result.stdout and "fibonacci 3" in result.stdout


def test_boot_saves_and_restores_snapshots(tmp_path):
    path = tmp_path / "s.kinst"
    assert run("kinst", "boot", "-k", "teaching/riscv64", "--save", str(path)).returncode == 0
    result = run("kinst", "boot", "-k", "teaching/riscv64", "--restore", str(path), "--type",
                 r"strings\r")
    assert result.returncode == 0 and "5 3610a686" in result.stdout
    assert "The teaching kernel" not in result.stdout  # the restored machine does not boot again


@pytest.mark.parametrize("words, says", [
    (["--type", "strings"], r"no prompt appeared after --type 'strings': the guest waits for "
     r"more keys (end a line with \r)"),
    (["--type", r"ticks\r", "--type", "x" * 20], "no prompt appeared after --type 'xxx"),
    (["--until", "lesson", "--type", r"strings\r"], "no text 'lesson' appeared: the guest "
     "waits for input"),
    (["--until", "teaching>", "--type", "\t", "--type", r"ticks\r\x1b"],
     "no text 'teaching>' appeared after --type '?'"),
])
def test_boot_reports_a_missing_prompt_within_a_million_instructions(
        arch, words, says, monkeypatch):
    words = ["-k", f"teaching/{arch}", *words]
    result = run("kinst", "boot", *words)
    refused(result, says)
    assert "refused" not in result.stdout
    monkeypatch.setattr(boot, "LIMIT", 1_000_000)
    parser = argparse.ArgumentParser()
    boot.add_options(parser)
    with pytest.raises(KinstError, match=re.escape(says)):
        boot.run(parser.parse_args([*words, "-q"]))


def test_the_early_end_of_a_boot_is_reported_with_its_reason():
    early = ["--until", "never said", "--type", r"off\r", "--instructions", "20000"]
    for words, stop in ((early, "instructions"), (["--type", r"off\r"], "power_off")):
        result = run("kinst", "boot", "-k", "teaching/amd64", *words)
        report = json.loads(run("kinst", "boot", "-k", "teaching/amd64", "--json", *words).stdout)
        count = report["instructions"]
        assert report["stop"] == stop and (count == 20_000) == (stop == "instructions")
        assert result.returncode == 0
        assert result.stdout.splitlines()[-1].startswith(f"{count} instructions, ")


def test_call_prints_the_value_and_the_buffer(arch):
    result = run("kinst", "call", "-k", f"teaching/{arch}", 'memcpy(buf(8), "hello", 6)', "--show",
                 "arg0")
    assert result.returncode == 0
    assert re.search(r"68 65 6c 6c 6f 00 00 00 +\|hello\.\.\.\|", result.stdout)


def test_call_shows_the_console_output():
    result = run("kinst", "call", "-k", "teaching/amd64", 'cnputs("a line\\n")')
    assert result.stdout.splitlines()[0] == "a line"


def test_a_call_of_a_void_function_reports_its_return(arch, tmp_path):
    call = 'cnputs("no end of line")'
    for words in (["call", call], ["record", "-o", str(tmp_path / "f.rec"), call]):
        result = run("kinst", words[0], "-k", f"teaching/{arch}", *words[1:])
        lines = result.stdout.splitlines()
        assert lines[:2] == ["no end of line", f"{call} returned (void)"], result
    traced = run("kdtrace", "-k", f"teaching/{arch}", "-n", "fbt::cnputs:entry", "-c", call)
    assert traced.stdout.splitlines()[2:] == ["no end of line", f"{call} returned (void)", ""]
    result = json.loads(run("kinst", "call", "--json", "-k", f"teaching/{arch}", call).stdout)
    assert result["value"] is None and result["type"] == "void"


@pytest.mark.parametrize("boot", [[], ["--no-boot"]])
def test_call_works_with_and_without_a_boot(arch, boot):
    result = run("kinst", "call", "-k", f"teaching/{arch}", 'strlen("hello")', *boot)
    assert result.stdout == 'strlen("hello") = 5 (0x5)\n'


def test_a_panicking_call_shows_the_console_and_fails(arch):
    result = run("kinst", "call", "-k", f"teaching/{arch}", 'panic("on purpose")')
    assert result.returncode == 1
    assert "panic: on purpose" in result.stdout
    assert result.stderr == "kinst: panic panicked (on purpose)\n"


@pytest.mark.parametrize("words, says", [
    (["strlne(1)"], "no function 'strlne'; did you mean strlen"),
    (["strlen("], "expected an argument"),
    (['strlen("x")', "--show", "arg7"], "--show arg7: no such buffer; the call has arg0"),
    (['strlen("x")', "--memory", "lots"], "not a memory size"),
    (['strlen("x")', "--memory", "65"], "bytes of memory; use a multiple of 2 MiB"),
    (['strlen("x")', "--limit", "0"], "--limit must be a positive number"),
    (['strlen("x")', "--snapshot", ABSENT], "cannot be read"),
    (["memcpy(buf(8), 0x7fff00000000, 0)", "--show", "arg1"], "is not mapped"),
])
def test_an_invalid_call_is_refused_with_one_line(tmp_path, words, says):
    refused(run("kinst", "call", "-k", "teaching/amd64", *placed(words, tmp_path)), says)


def test_an_unusable_image_is_refused_with_one_line(tmp_path, arch):
    other = {"amd64": "arm64", "arm64": "riscv64", "riscv64": "amd64"}[arch]
    raw = catalog.find(f"teaching/{arch}").path.read_bytes()
    cases = {
        "text": (b"not a kernel", "not an ELF file"), "cut": (raw[: len(raw) // 2], "truncated"),
        "mips": (Elf(arch="mips").build(), "made for"),
        "nosymbols": (Elf(arch=other, symbols=[]).build(), "no symbols"),
    }
    for name, (data, says) in cases.items():
        path = tmp_path / name
        path.write_bytes(data)
        refused(run("kinst", "boot", "-k", str(path)), says)
    refused(run("kinst", "boot", "-k", str(tmp_path / "nothing")), "no such file")
    refused(run("kinst", "boot", "-k", str(tmp_path)), "directory")


def test_disas_without_a_function_lists_all_functions(arch):
    kernel = catalog.find(f"teaching/{arch}")
    functions = list(kernel.symbols.functions())
    lines = run("kinst", "disas", "-k", f"teaching/{arch}").stdout.splitlines()
    assert len(lines) == len(functions) > 30
    strlen = kernel.symbols.find("strlen")
    assert [hex(strlen.address), str(strlen.size), "strlen"] in [line.split() for line in lines]
    rows = json.loads(run("kinst", "disas", "--json", "-k", f"teaching/{arch}").stdout)
    assert [row["function"] for row in rows] == [one.name for one in functions]
    assert {row["module"] for row in rows} == {"kernel"}


def test_disas_accepts_the_same_patterns_as_probes(arch):
    kernel, names = ("-k", f"teaching/{arch}"), {"strlen", "strcmp", "strtoul"}
    heads = [line.split(":")[0] for line in run("kinst", "disas", *kernel, "str*").stdout
             .splitlines() if line.endswith(" bytes") and not line.startswith(" ")]
    assert len(heads) == len(names) and set(heads) == names
    rows = json.loads(run("kinst", "disas", "--json", *kernel, "str[^lc]*", "s?rlen").stdout)
    assert {row["function"] for row in rows} == {"strtoul", "strlen"}
    listed = run("kdtrace", "-l", *kernel, "-n", "fbt::str*:entry").stdout
    assert names == {line.split()[3] for line in listed.splitlines()[1:]}
    refused(run("kinst", "disas", *kernel, "nothing*"), "no function matches 'nothing*'")


def test_disas_shows_instructions_and_verdicts(arch):
    result = run("kinst", "disas", "-k", f"teaching/{arch}", "strlen", "cpu_switch")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert re.fullmatch(r"strlen: 0x[0-9a-f]+, \d+ bytes", lines[0])
    assert re.fullmatch(r"  \./string\.c:\d+", lines[1])
    assert lines[2].lstrip().startswith("0  ") and lines[2].endswith(" copy")
    assert any(line.endswith(" emulate") for line in lines)
    assert "refuse: the function is excluded" in lines[-1]
    listed = json.loads(run("kinst", "disas", "--json", "-k", f"teaching/{arch}", "strlen").stdout)
    assert listed[0]["offset"] == 0 and listed[0]["verdict"] == "copy"
    assert listed[0]["source"].startswith("./string.c:")
    plain = run("kinst", "disas", "--no-source", "-k", f"teaching/{arch}", "strlen").stdout
    assert "string.c" not in plain
    refused(run("kinst", "disas", "-k", f"teaching/{arch}", "strlne"), "did you mean strlen")


def test_relocate_reports_verdicts_and_mismatches(arch):
    result = run("kinst", "relocate", "-k", f"teaching/{arch}", "strlen", "crc32", "classify")
    assert result.returncode == 0
    assert re.match(r"\d+ instructions\n +\d+  copy", result.stdout)
    assert re.search(r"\n\d+ distinct encodings, 0 mismatches, 0 unproven\n +\d+  copy",
                     result.stdout)
    report = json.loads(run("kinst", "relocate", "--json", "-k", f"teaching/{arch}", "strlen")
                        .stdout)
    assert report["mismatches"] == [] and report["verdicts"]["copy"] > 3


def test_relocate_reads_encodings_from_standard_input():
    result = run("kinst", "relocate", "--arch", "amd64", "--encodings", "-",
                 stdin="55\n48 8b 05 10 00 00 00  # mov\n\nfb\n")
    assert result.returncode == 0
    assert result.stdout.splitlines()[:4] == [
        "line 1: 55  push rbp  copy",
        "line 2: 48 8b 05 10 00 00 00  mov rax, qword ptr [rip + 0x10]  rewrite",
        "line 4: fb  sti  refuse: changes the interrupt flag",
        "3 distinct encodings, 0 mismatches, 0 unproven",
    ]


def test_relocate_writes_a_junit_report(tmp_path):
    path = tmp_path / "report.xml"
    result = run("kinst", "relocate", "-k", "teaching/riscv64", "strlen", "--junit", str(path))
    assert result.returncode == 0
    suite = ElementTree.parse(path).getroot()[0]
    assert suite.get("failures") == "0" and suite[0].get("name") == "strlen"
    refused(run("kinst", "relocate", "-k", "teaching/riscv64", "strlen", "--junit",
                str(tmp_path / "no" / "report.xml")), "the directory does not exist")


@pytest.mark.parametrize("words, stdin, says", [
    ([], None, "give a kernel"), (["--encodings", "-"], "55", "needs --arch"),
    (["--arch", "amd64", "--encodings", "-"], "xyz", "-:1: 'xyz' is not an instruction"),
    (["--arch", "amd64", "--encodings", ABSENT], None, "cannot be read"),
    (["-k", "teaching/amd64", "alltraps"], None, "the size of function"),
    (["-k", "teaching/amd64", "--arch", "arm64"], None, "is for amd64"),
    (["-k", "teaching/amd64", "--arch", "amd64", "--encodings", "-"], "55",
     "does not test a kernel"),
    (["-k", "teaching/amd64", "strlne"], None, "did you mean strlen"),
    (["-k", "teaching/amd64", "--states", "none"], None, "--states must be a positive number"),
])
def test_invalid_relocate_arguments_are_refused_with_one_line(tmp_path, words, stdin, says):
    refused(run("kinst", "relocate", *placed(words, tmp_path), stdin=stdin), says)


def test_images_are_listed():
    result = run("kinst", "images")
    assert "teaching/amd64" in result.stdout and "15.0-RELEASE/riscv64" in result.stdout
    listed = json.loads(run("kinst", "images", "--json").stdout)
    assert {"name", "path", "origin"} == set(listed[0])


def test_an_added_kernel_is_found_by_name(tmp_path):
    path = catalog.find("teaching/riscv64").path
    assert run("kinst", "images", "add", str(path), "--name", "mine/riscv64").returncode == 0
    result = run("kinst", "call", "-k", "mine/riscv64", 'strlen("ab")')
    assert result.stdout == 'strlen("ab") = 2 (0x2)\n'
    refused(run("kinst", "images", "add", str(path), "--name", "../x/y"), "the form NAME/ARCH")
    refused(run("kinst", "images", "add", str(path), "--name", "../x"), "the form NAME/ARCH")
    refused(run("kinst", "images", "add", str(tmp_path)), "directory")


def test_a_kinst_probe_traces_each_instruction(arch):
    result = run("kdtrace", "-k", f"teaching/{arch}", "-n", "kinst::strlen:", "-c",
                 'strlen("hello")')
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "CPU     ID                    FUNCTION:NAME"
    assert lines[1] == "  0    100                         strlen:0 "
    assert lines[-2:] == ['strlen("hello") = 5 (0x5)', ""]
    assert re.fullmatch(r"dtrace: description 'kinst::strlen:' matched \d+ probes\n",
                        result.stderr)
    rows = [re.fullmatch(r"  0 {1,6}\d+ +strlen:\d+ ", line) for line in lines[1:-2]]
    assert all(rows) and len(rows) > 10


def test_fbt_traces_function_entry_and_return(arch):
    result = run("kdtrace", "-k", f"teaching/{arch}", "-n", "fbt::collatz:", "-c", "collatz(3)")
    rows = [line.split()[2] for line in result.stdout.splitlines()[1:-2]]
    assert rows == ["collatz:entry", "collatz:return"]


def test_a_single_match_is_reported_in_the_singular():
    result = run("kdtrace", "-k", "teaching/amd64", "-n", "kinst::strlen:0", "-c", 'strlen("a")')
    assert result.stderr == "dtrace: description 'kinst::strlen:0' matched 1 probe\n"
    assert len(result.stdout.splitlines()) == 4


@pytest.mark.parametrize("arch", ["amd64", "arm64", "riscv64"])
def test_all_returns_of_a_function_are_one_probe(arch):
    """classify() has three return instructions; each call executes one of them."""
    kernel = ("-k", f"teaching/{arch}")
    listed = run("kdtrace", *kernel, "-l", "-n", "fbt::classify:", "--json")
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(row["name"], row["id"]) for row in rows] == [("entry", 100), ("return", 101)]
    calls = "; ".join(f"classify({kind}, 100{kind})" for kind in range(5))
    clause = ("{ @[id] = count(); @places[arg0] = count(); } "
              "END { printa(@); printa(\"place %d %@d\\n\", @places); }")
    done = run("kdtrace", *kernel, "-qn", f"fbt::classify:return {clause}", "-c", calls)
    assert done.stdout.count("place") > 1, done.stdout
    assert done.stdout.split("place")[0].split()[-2:] == ["100", "5"]
    done = run("kdtrace", *kernel, "-n", "fbt::classify:return", "-c", calls)
    assert "matched 1 probe" in done.stderr and done.stdout.count("classify:return") == 5
    done = run("kdtrace", *kernel, "-l", "-n", "fbt::classify:", "-i", "102")
    assert "invalid probe identifier 102" in done.stderr  # the second place is no probe
    done = run("kdtrace", *kernel, "-n", "fbt::classify:entry", "-n", "fbt::classify:return",
               "-i", "101", "-c", calls)
    assert done.stdout.count("classify:return") == 10, done.stdout + done.stderr




def test_probes_are_listed_in_the_same_columns_as_by_dtrace():
    result = run("kdtrace", "-l", "-k", "teaching/amd64", "-n", "kinst::strlen:0")
    assert result.stdout == (
        "   ID   PROVIDER            MODULE                          FUNCTION NAME\n"
        "  100      kinst            kernel                            strlen 0\n"
    )


@pytest.mark.parametrize("words, says", [
    (["-n", "kinst::strlne:", "-c", "strlen(1)"], "did you mean strlen"),
    (["-n", "kinst::strlen:2", "-c", "strlen(1)"], "nearest are 1 and 4"),
    (["-n", "kinst::strlen:999", "-c", "strlen(1)"], "ends at offset"),
    (["-n", "kinst::strlen:-4", "-c", "strlen(1)"], "not a decimal"),
    (["-n", "kinst::strlen:00000000000000000000002", "-c", "strlen(1)"], "nearest are 1 and 4"),
    (["-n", "kinst::strlen:99999999999999999999999", "-c", "strlen(1)"], "ends at offset"),
    (["-n", "fbt::strlen:exit", "-c", "strlen(1)"], "named entry and return"),
    (["-n", "syscall::read:entry", "-c", "strlen(1)"], "invalid probe specifier"),
    (["-n", "kinst::strlen:0 { trace(nosuch); }", "-c", 'strlen("a")'], "to resolve nosuch"),
    (["-n", "nonsense", "-c", "strlen(1)"], "invalid probe specifier"),
    (["-n", "kinst::strlen:", "-c", "strlne(1)"], "no function 'strlne'"),
    (["-n", "kinst::strlen:"], "nothing to run"),
    (["-c", "strlen(1)"], "no probes specified"),
    (["-n", "kinst:zfs:strlen:", "-c", "strlen(1)"], "unknown module 'zfs'"),
])
def test_an_invalid_probe_is_refused_with_one_line(words, says):
    refused(run("kdtrace", "-k", "teaching/amd64", *words), says, "dtrace")


@pytest.mark.parametrize("path", PATHS)
def test_the_boot_can_be_traced_like_any_workload(arch, path):
    result = run("kdtrace", "-k", f"teaching/{arch}", "--trap-path", path, "-n", "fbt::worker:",
                 "-n", "kinst::clock_interrupt:0", "-c", "boot")
    assert result.returncode == 0, result.stderr
    assert "worker:entry" in result.stdout and "clock_interrupt:0" in result.stdout
    assert result.stdout.rstrip().endswith("teaching>")


def test_a_boot_over_the_instruction_limit_is_aborted():
    refused(run("kdtrace", "-q", "-k", "teaching/amd64", "-n", "fbt::worker:entry", "--limit",
                "5000", "-c", "boot"), "the boot ended early: instruction count reached", "dtrace")


def test_a_verbose_listing_explains_what_is_not_probed(arch):
    result = run("kdtrace", "-l", "-v", "-k", f"teaching/{arch}", "-n", "kinst::machine_idle:",
                 "-n", "kinst::spin_lock:")
    assert result.returncode == 0
    refusals = [line for line in result.stdout.splitlines() if line.startswith("not probed: ")]
    assert refusals
    left_out = run("kdtrace", "-l", "-v", "-k", f"teaching/{arch}", "-n", "kinst::*:").stdout
    assert "not probed: kernel:cpu_switch: the function is excluded" in left_out
    assert "the function has no frame" in left_out
    assert all(re.fullmatch(r"not probed: kinst:kernel:\w+:\d+ \(.+\): .+", line)
               for line in refusals)


def test_shorter_descriptions_match_more_probes():
    counts = [len(run("kdtrace", "-l", "-k", "teaching/amd64", *words).stdout.splitlines())
              for words in (["-n", "fbt::strlen:entry"], ["-f", "strlen"], ["-n", "str*:entry"],
                            ["-P", "fbt"])]
    assert counts == sorted(counts) and len(set(counts)) == 4


def test_excluded_functions_are_listed_with_the_unsafe_option():
    words = ["-l", "-k", "teaching/riscv64", "-n", "kinst::cpu_switch:"]
    refused(run("kdtrace", *words), "--unsafe", "dtrace")
    insisted = run("kdtrace", "--unsafe", *words)
    rows = [line.split() for line in insisted.stdout.splitlines()[1:]]
    assert insisted.returncode == 0 and len(rows) > 5
    assert {tuple(row[1:4]) for row in rows} == {("kinst", "kernel", "cpu_switch")}


def test_per_thread_trampolines_are_refused_where_unsupported():
    refused(run("kdtrace", "-k", "teaching/arm64", "--trampolines", "thread", "-n",
                "kinst::strlen:", "-c", 'strlen("a")'), "arm64 supports only", "dtrace")
    result = run("kdtrace", "-k", "teaching/amd64", "--trampolines", "thread", "-n",
                 "kinst::strlen:", "-c", 'strlen("a")')
    assert result.stdout.endswith('strlen("a") = 1 (0x1)\n\n')


def test_inline_calls_are_listed_as_copies_and_as_a_tree(arch):
    tree = run("kinst", "inline", "-k", f"teaching/{arch}", "--in", "kernel_main")
    assert tree.returncode == 0 and tree.stdout.startswith("kernel_main: 0x")
    trees = json.loads(run("kinst", "inline", "-k", f"teaching/{arch}", "--json", "--in",
                           "kernel_main").stdout)
    assert trees[0]["function"] == "kernel_main"
    inlined = {node["name"] for node in trees[0]["inline"]}
    for name in inlined:
        rows = json.loads(run("kinst", "inline", "-k", f"teaching/{arch}", "--json", name).stdout)
        assert any(row["caller"] == "kernel_main" for row in rows)


@pytest.mark.parametrize("words, says", [
    (["inline"], "give either the NAME of an inline function"),
    (["inline", "nosuch"], "the debug data has no function 'nosuch'"),
    (["inline", "strlen"], "has no inline copy"),
    (["inline", "--in", "nosuch"], "no function 'nosuch'"),
    (["line", "nonsense"], "has no function 'nonsense'"),
    (["line", "string.c:9999"], "the line has no code"),
    (["line", "nosuch.c:1"], "no source file is named nosuch.c"),
    (["line", "strlen:9999"], "ends at offset"),
])
def test_invalid_debug_data_queries_are_refused_with_one_line(words, says):
    refused(run("kinst", words[0], "-k", "teaching/amd64", *words[1:]), says)


def test_a_source_line_and_its_code_map_to_each_other(arch):
    (where,) = run("kinst", "line", "-k", f"teaching/{arch}", "strlen:0").stdout.splitlines()
    function, source = where.split()
    assert function == "strlen" and source.startswith("./string.c:")
    found = run("kinst", "line", "-k", f"teaching/{arch}", source.removeprefix("./"))
    assert "strlen:0" in found.stdout.splitlines()


def test_the_d_option_prints_the_probes_of_inline_functions():
    trees = json.loads(run("kinst", "inline", "-k", "teaching/riscv64", "--json", "--in",
                           "kernel_main").stdout)
    names = [node["name"] for node in trees[0]["inline"]] or ["strlen"]
    result = run("kdtrace", "-d", "-l", "-k", "teaching/riscv64", "-n",
                 f"kinst::{names[0]}:entry")
    assert result.returncode == 0, result.stderr
    assert re.match(r"((kinst|fbt)::\w+:\w+,?\n)+\{\n\}\n", result.stdout)


@pytest.mark.parametrize("words, says", [
    (["-c", "5"], "executes no instruction"), (["-c", "nosuch(1)"], "no function 'nosuch'"),
    (["-c", "strlen("], "strlen("), (["-c", "fibonacci(24)"], "more than 50000 instructions"),
    (["-c", 'strlen("a")', "--random", "2"], "not both"), (["--functions", ","], "give names"),
    (["--functions", "nosuch*"], "pattern 'nosuch*' matches nothing"),
    (["--random", "x"], "--random"),
    (["--seed", "x"], "--seed"), (["-c", "strlen(0x12345678900)"], "not compared"),
])
def test_xval_refuses_invalid_arguments_with_one_line(words, says):
    result = run("kinst", "xval", "-k", "teaching/amd64", *words)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and says in result.stderr


def test_xval_reports_agreement_and_differences(arch):
    good = run("kinst", "xval", "-k", f"teaching/{arch}", "--functions", "str*", "--seed", "7")
    assert good.returncode == 0, good.stderr
    assert "calls agree" in good.stdout and "(seed 7)" in good.stdout
    bad = run("kinst", "xval", "-k", f"teaching/{arch}", "-c", 'strlen("abc")', "--fault",
              "emulation")
    assert bad.returncode == 1 and "string.c:" in bad.stdout
    assert "ours" in bad.stdout and "QEMU" in bad.stdout and "  <" in bad.stdout
    assert f"to repeat: kinst xval -k teaching/{arch} -c 'strlen(\"abc\")'" in bad.stdout


@pytest.mark.parametrize("words, says", [
    (["-c", "boot"], "--machine qemu"), (["-c", 'strlen("a")', "--limit", "5"], "or --limit"),
    (["-c", 'strlen("a")', "--unsafe"], "cannot be used with --unsafe"),
    (["-c", 'strlen("a")', "--trap-path", "direct"], "--trap-path=direct"),
])
def test_options_that_qemu_lacks_are_refused_with_one_line(words, says):
    result = run("kdtrace", "-k", "teaching/amd64", "--machine", "qemu", "-n", "kinst::strlen:0",
                 *words)
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and says in result.stderr


def test_both_machines_print_the_same_trace(arch):
    words = ("-k", f"teaching/{arch}", "-n", "kinst::strlen:", "-n", "fbt::memcpy:entry", "-c",
             'strlen("hello")')
    ours = run("kdtrace", *words)
    theirs = run("kdtrace", "--machine", "qemu", *words)
    assert ours.returncode == 0 and (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)


def test_a_panic_on_qemu_is_reported_with_its_reason():
    result = run("kdtrace", "-q", "-k", "teaching/amd64", "--machine", "qemu", "-n",
                 "kinst::strlen:0", "--unchecked", "-c", "strlen(0x12345678900)")
    assert result.returncode == 1 and "panicked (unexpected trap)" in result.stderr


def test_types_prototypes_and_variables_are_printed(arch):
    kernel = ("-k", f"teaching/{arch}")
    layout = run("kinst", "type", *kernel, "struct trapframe").stdout
    assert layout.startswith("/* offset:bit   size */") and "struct trapframe {" in layout
    (row,) = json.loads(run("kinst", "type", *kernel, "--json", "struct trapframe").stdout)
    assert row["size"] > 100 and {"name", "type", "bit", "width"} <= row["members"][0].keys()
    assert run("kinst", "type", *kernel, "strlen").stdout == "size_t strlen(const char *s);\n"
    pointer = run("kinst", "type", *kernel, "dtrace_invop_jump_addr").stdout
    assert pointer == "int (*dtrace_invop_jump_addr)(struct trapframe *);\n"


@pytest.mark.parametrize("words, says", [
    (["trapframe"], "did you mean struct trapframe?"), (["nosuch"], "has no type"),
    (["u64", "--from", "ctf"], "has no CTF types"),
])
def test_an_unknown_type_is_refused_with_one_line(words, says):
    refused(run("kinst", "type", "-k", "teaching/amd64", *words), says)
