"""Tests of the commands ``inline``, ``type`` and ``line`` on files compiled by the tests."""

import json
import re
import subprocess

import pytest

from images import catalog
from images.compiler import tool
from tests.kinst_emu.commands.test_commands import refused, run

SOURCE = """
volatile int sink;
struct box { int a; struct box *next; };
void __attribute__((cold, noinline)) report(int x) { sink = x; }
static inline __attribute__((always_inline)) int check(struct box *b, int y)
{
    if (__builtin_expect(b->a > 100, 0)) {
        report(y);
        sink = y * 3;
        return -1;
    }
    return b->a + y;
}
int __attribute__((noinline)) work(struct box *b, int y) { return check(b, y) * 2; }
int _start(struct box *b) { return work(b, 1) + work(b, 2); }
"""


def built(tmp_path, *flags, compiler=""):
    source, made = tmp_path / "boxes.c", tmp_path / "boxes.out"
    source.write_text(SOURCE)
    subprocess.run([compiler or tool("clang"), "-w", "-g", "-O2", "-ffreestanding", "-nostdlib",
                    "-static", *flags, "-o", made, source], check=True, cwd=tmp_path)
    return made


def answered(*words):
    result = run("kinst", *words)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_types_in_type_units_are_shown_for_variables_and_parameters(
        tmp_path, compiler, version):
    (tmp_path / "boxes.h").write_text("struct box { int a; struct box *next; };\n")
    made = tmp_path / "own"
    (tmp_path / "own.c").write_text(
        '#include "boxes.h"\nstruct box one; int use(struct box *b) { return b->a; }\n'
        "int _start(void) { return use(&one); }\n")
    subprocess.run([tool(compiler), "-g", f"-gdwarf-{version}", "-fdebug-types-section", "-O1",
                    "-ffreestanding", "-nostdlib", "-static", "-o", made, "own.c"], check=True,
                   cwd=tmp_path)
    assert answered("type", "-k", str(made), "one") == "struct box one;\n"
    assert answered("type", "-k", str(made), "use") == "int use(struct box *b);\n"


@pytest.mark.parametrize("flags", [
    ("-c",), ("-c", "-fdebug-types-section"), ("-c", "-fdebug-types-section", "-gdwarf-4"), ()])
def test_object_files_and_programs_are_described_like_kernels(tmp_path, flags):
    made = str(built(tmp_path, *flags))
    assert answered("type", "-k", made, "struct box").endswith("};  /* 16 bytes */\n")
    copy = json.loads(answered("inline", "-k", made, "check", "--json"))[0]
    assert copy["caller"] == "work" and copy["call"].endswith("boxes.c:14")
    place = f"work+{copy['offset']:#x}"
    assert "boxes.c:" in answered("line", "-k", made, place)
    assert "work:" in answered("line", "-k", made, "boxes.c:12")


def test_a_debug_file_uses_the_code_of_the_stripped_file_next_to_it(tmp_path):
    made = built(tmp_path)
    debug, bare = tmp_path / "kernel.debug", tmp_path / "kernel"
    subprocess.run(["objcopy", "--only-keep-debug", made, debug], check=True)
    alone = answered("type", "-k", str(debug), "struct box")
    refused(run("kinst", "line", "-k", str(debug), "work:return"), "has debug data but no code")
    subprocess.run(["objcopy", "--strip-debug", f"--add-gnu-debuglink={debug}", made, bare],
                   check=True, cwd=tmp_path)
    assert answered("type", "-k", str(debug), "struct box") == alone
    for words in (("inline", "check"), ("line", "work:return"), ("line", "boxes.c:12")):
        assert answered(words[0], "-k", str(debug), words[1]) == answered(
            words[0], "-k", str(made), words[1])


def test_a_copy_in_a_cold_part_without_a_symbol_belongs_to_its_function(tmp_path):
    """gcc puts the cold part before the function and lists the hot part first."""
    made = built(tmp_path, compiler="gcc")
    named = json.loads(answered("inline", "-k", str(made), "check", "--json"))[0]
    work = symbols(made)["work"]
    assert named["caller"] == "work" and 0 <= named["offset"] < 64
    assert any(high <= work for _low, high in named["ranges"]), "gcc has not split the function"
    subprocess.run(["strip", "-N", "work.cold", made], check=True)
    assert json.loads(answered("inline", "-k", str(made), "check", "--json"))[0] == named
    listed = answered("inline", "-k", str(made), "--in", "work")
    assert "?" not in listed and "check" in listed


def symbols(path):
    return {row.split()[2]: int(row.split()[0], 16) for row in subprocess.run(
        ["nm", path], check=True, capture_output=True, text=True).stdout.splitlines()}


def test_files_without_debug_data_are_refused_with_one_line(tmp_path):
    made = built(tmp_path, "-g0", "-c")
    refused(run("kinst", "type", "-k", str(made), "int"), "has no DWARF or CTF types")
    refused(run("kinst", "inline", "-k", str(made), "check"), "has no debug data")
    refused(run("kinst", "type", "-k", str(tmp_path / "boxes.c"), "int"), "not an ELF file")
    made.write_bytes(made.read_bytes()[:100])
    refused(run("kinst", "type", "-k", str(made), "int"), str(made))


def test_equal_structures_of_several_units_are_printed_once(tmp_path):
    """Two compiled files define the same structure on different lines."""
    for name, before in (("a", ""), ("b", "\n\n")):
        (tmp_path / f"{name}.c").write_text(
            f"{before}struct pair {{ int one, two; }}; struct pair {name}; "
            + ("int _start(void) { return 0; }" if name == "a" else ""))
    made = tmp_path / "two"
    subprocess.run([tool("clang"), "-g", "-O1", "-ffreestanding", "-nostdlib", "-static", "-o",
                    made, "a.c", "b.c"], check=True, cwd=tmp_path)
    assert answered("type", "-k", str(made), "struct pair").count("struct pair {") == 1
    assert len(json.loads(answered("type", "-k", str(made), "struct pair", "--json"))) == 1


# -- inline --dwarf --------------------------------------------------------------------------------

SUM = re.compile(r"(0x[0-9a-f]+) \+ (0x[0-9a-f]+) = (0x[0-9a-f]+)")
DIFFERENCE = re.compile(r"entry = (0x[0-9a-f]+) - (0x[0-9a-f]+) = (\d+)")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_printed_sums_are_correct_and_end_at_the_probe(tmp_path, version, compiler):
    made = str(built(tmp_path, f"-gdwarf-{version}", compiler=tool(compiler)))
    text = answered("inline", "-k", made, "--dwarf", "check")
    assert "DW_TAG_subprogram  (the function its copies refer to)" in text
    origin = re.search(r"DW_AT_abstract_origin +<0x([0-9a-f]+)>", text)[1]
    assert f"<{origin}> DW_TAG_subprogram" in text
    assert re.search(r"DW_AT_call_line +14\n", text) and "boxes.c)" in text
    sums = SUM.findall(text)
    assert all(int(a, 16) + int(b, 16) == int(c, 16) for a, b, c in sums)
    entry, begin, offset = DIFFERENCE.search(text).groups()
    assert int(entry, 16) - int(begin, 16) == int(offset)
    copy = json.loads(answered("inline", "-k", made, "check", "--json"))[0]
    assert copy["offset"] == int(offset) and f"kinst::work:{offset}\n" in text + "\n"
    for letter, side in (("L", 0), ("H", 1)):
        ends = re.findall(rf"^    {letter} = .*?(0x[0-9a-f]+)$", text, re.MULTILINE)
        assert [int(end, 16) for end in ends] == [piece[side] for piece in copy["ranges"]]
    assert re.search(r"in work, .*boxes\.c:14:\n", text)  # the file that defines the caller


def test_the_source_file_of_a_function_is_that_of_its_defining_unit(tmp_path):
    """With -flto, an inline copy and its function belong to different units."""
    (tmp_path / "h.h").write_text(
        "static inline __attribute__((always_inline)) int inl(int n) { return n * 3 + 1; }\n"
        "int mid(int n);\n")
    (tmp_path / "a.c").write_text('#include "h.h"\n\n\nint mid(int n) { return inl(n) + 2; }\n')
    (tmp_path / "m.c").write_text(
        '#include "h.h"\nvolatile int v;\nint _start(void) { return mid(v) + inl(v); }\n')
    made = tmp_path / "lto"
    subprocess.run(["gcc", "-flto", "-g", "-O2", "-ffreestanding", "-nostdlib", "-static", "-o",
                    made, "a.c", "m.c"], check=True, cwd=tmp_path)
    shown = json.loads(answered("inline", "-k", str(made), "inl", "--dwarf", "--json"))
    expected = {"mid": "a.c:4", "_start": "m.c:3"}
    assert shown
    for one in shown:
        within = one["within"]
        assert within["source"].endswith(expected[within["function"]]), within


def test_dwarf_entries_of_every_inline_copy_match_the_listing(arch):
    kernel = f"teaching/{arch}"
    index_names = [line.split()[0] for line in answered(
        "inline", "-k", kernel, "--in", catalog_function(kernel)).splitlines()[1:]]
    assert index_names
    for name in dict.fromkeys(index_names):
        shown = json.loads(answered("inline", "-k", kernel, "--dwarf", name, "--json"))
        listed = json.loads(answered("inline", "-k", kernel, name, "--json"))
        assert [(one["caller"], one["offset"]) for one in shown] == [
            (one["caller"], one["offset"]) for one in listed]
        assert [[[p["low"], p["high"]] for p in one["pieces"]] for one in shown] == [
            one["ranges"] for one in listed]


def catalog_function(kernel):
    """Return the name of a teaching kernel function that contains inlined calls."""
    from dtrace.debug.debug_index import debug_index

    image = catalog.find(kernel)
    index = debug_index(image)
    return next(image.symbols.function_at(copy.pieces[0][0]).name
                for name in index.names() for copy in index.copies(name))


def test_the_dwarf_option_requires_a_function_name():
    refused(run("kinst", "inline", "-k", "teaching/amd64", "--in", "strlen", "--dwarf"), "--dwarf")
