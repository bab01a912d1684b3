"""Tests of the IPython extension: magics, completion, one-line errors, and rich output."""

import html5lib
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import kinst_emu
from kinst_emu.notebook import html
from kinst_emu.notebook.flame_graph import FlameGraph
from kinst_emu.shell.completion import KernelCompletion
from tests.kinst_emu.commands.test_front import refused, run


@pytest.fixture
def ipython():
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "kinst_emu")
    shell.run_line_magic("kinst", "-k teaching/amd64 --memory 64M")
    return shell


def is_html(text):
    parser = html5lib.HTMLParser(strict=True)
    parser.parseFragment(text)
    return text


def test_a_d_cell_traces_a_call_and_returns_its_records(ipython):
    cell = "fbt::strlen:entry { trace(stringof(arg0)); @[probefunc] = count(); }"
    ipython.run_cell_magic("dtrace", "-c 'strlen(\"hello\")' -x strsize=64", cell)
    traced = ipython.user_ns["traced"]
    assert traced.records[0].values == ["hello"]
    assert traced.aggregations == {"@": {("strlen",): 1}}
    shown = is_html(traced._repr_html_())
    assert "fbt:kernel:strlen:entry" in shown and "hello" in shown
    assert ipython.display_formatter.format(traced)[0]["text/plain"].startswith("<D program")


def test_a_program_stays_enabled_until_the_next_one(ipython):
    ipython.run_cell_magic("dtrace", "7", "fbt::strlen:entry { trace($1); }")
    first = ipython.user_ns["traced"]
    ipython.run_cell("call('strlen', 'x'); call('strlen', 'y')")
    assert [record.values for record in first.records] == [[7], [7]]
    ipython.run_line_magic("dtrace", "-n 'fbt::strlen:return { trace(arg1); }'")
    ipython.run_cell("call('strlen', 'xyz')")
    second = ipython.user_ns["traced"]
    assert [record.values for record in second.records] == [[3]] and len(first.records) == 2
    second.close()


def test_every_magic_returns_a_displayable_result(ipython):
    ipython.run_cell('q = get_ipython().run_line_magic("explain", '
                     '''"strlen:0 -c 'strlen(\\"a\\")' -n '{ trace(arg0); }'")''')
    shown = ipython.display_formatter.format(ipython.user_ns["q"])[0]
    assert set(shown) >= {"text/plain", "text/html", "image/svg+xml"}
    assert "The trap frame" in shown["text/plain"] and "data-register" in shown["image/svg+xml"]
    assert 'allow="fullscreen *" srcdoc="&lt;!DOCTYPE' in is_html(shown["text/html"])
    table = ipython.run_line_magic("disas", "strlen")
    assert "<th" in is_html(table._repr_html_()) and "push rbp" in repr(table)
    assert "size_t strlen" in repr(ipython.run_line_magic("layout", "strlen"))
    assert "cngetc" in is_html(ipython.run_line_magic("stack", "")._repr_html_())
    assert "rip" in is_html(ipython.user_ns["step"]()._repr_html_())


def test_a_walk_is_displayed_as_tables(ipython, tmp_path):
    path = tmp_path / "x.rec"
    ipython.run_cell(f"with machine.record({str(path)!r}): call('classify', 4, 3)")
    ipython.run_line_magic("kinst", str(path))
    ipython.run_cell("go('fibonacci#2'); a = args(); l = locals(); n = next(); u = up(); w = why()")
    for name, shown in (("a", "int n"), ("l", "int n"), ("n", "fibonacci"), ("u", "fibonacci"),
                        ("w", "is executed")):
        assert shown in is_html(ipython.user_ns[name]._repr_html_())
    ipython.run_cell("many = [next(numbers) for numbers in [iter([5])]]")
    assert ipython.user_ns["many"] == [5]


@pytest.mark.parametrize(("line", "why"), [
    ("%disas nosuch", "nosuch"), ("%disas", "give exactly one FUNCTION"),
    ("%layout", "give the name"),
    ("%who_wrote x", "needs a recording"), ("%explain strlen:0", "-c"),
    ("%dtrace", "give one program"), ("%dtrace -n 'x'", "does not compile"),
    ("%kinst", "give a kernel"), ("%kinst -k no/such", "no/such"), ("%kinst no.rec", "no.rec"),
    ("%dtrace 'x", "no closing quotation"), ("call('strlen')", "expected 1 argument, got 0"),
    ("%dtrace -x nosuch -n 'BEGIN {}'", "nosuch")])
def test_errors_are_reported_in_one_line(ipython, capsys, line, why):
    result = ipython.run_cell(line)
    shown = "".join(capsys.readouterr())
    assert not result.success and why.lower() in shown.lower()
    assert "Traceback" not in shown and len(shown.strip().splitlines()) == 1, shown


def test_a_clause_is_not_evaluated_as_python(ipython):
    """IPython must not evaluate D code in braces, such as { stack(); }."""
    before = ipython.user_ns["machine"].instructions
    ipython.run_line_magic("dtrace", "-n 'fbt::strlen:entry { stack(); trace(7); }' "
                           "-c 'strlen(\"x\")'")
    assert ipython.user_ns["traced"].records[0].values[-1] == 7
    ipython.run_line_magic("explain", "strlen:0 -c 'strlen(\"x\")' -n '{ stack(); }'")
    now = ipython.user_ns["machine"].instructions
    ipython.run_cell("%dtrace -n 'fbt::strlen:entry { step() }'")
    assert ipython.user_ns["machine"].instructions == now > before
    ipython.user_ns["workload"] = 'strlen("abc")'
    ipython.run_cell_magic("dtrace", "-c {workload}", "fbt::strlen:return { trace(arg1); }")
    assert ipython.user_ns["traced"].records[0].values == [3]


def test_reloading_the_extension_registers_completion_once(ipython):
    for _ in range(3):
        ipython.run_line_magic("reload_ext", "kinst_emu")
    ours = [one for one in ipython.Completer.custom_matchers
            if getattr(one, "matcher_identifier", "") == "kinst_emu"]
    assert len(ours) == 1
    ipython.run_line_magic("unload_ext", "kinst_emu")
    assert len(ipython.Completer.custom_matchers) == 0


def test_a_distribution_labels_underflow_and_has_no_bar_for_zero():
    shown = is_html(html.aggregation("@", {(): [{"count": 1}, {"from": 3, "count": 0},
                                                {"from": 10, "count": 4}]}))
    assert ">below<" in shown and shown.count("█") == 5 + 20


def completed(ipython, text):
    with provisionalcompleter():
        return [one.text for one in ipython.Completer.completions(text, len(text))]


def test_names_are_completed_in_calls_magics_and_probes(ipython):
    assert "strlen" in completed(ipython, 'call("strl')
    assert "strlen" in completed(ipython, "%disas strl")
    assert "strlen" in completed(ipython, 'machine.probe("fbt::strl')
    assert "strlen" in completed(ipython, "%%dtrace\nfbt::strl")
    assert "machine" in completed(ipython, "mach")
    assert "registers" in "".join(completed(ipython, "machine.reg"))


def test_completion_does_not_look_up_attributes():
    class Trap:
        def __getattr__(self, name):
            raise AssertionError("completion must not look up attributes")

    completion = KernelCompletion({"x": Trap(), "n": 5, "kernel": Trap()})
    for line in ("x.y.z", "n.b", "x[0].a", "nothing.", 'call("a', "a.b.c.d", "%disas x", "fbt::x"):
        assert completion.complete(line) is None


def test_displayed_text_is_escaped_and_truncated():
    evil = "<script>alert(1)</script>"
    rows = [(evil, number) for number in range(html.MOST_ROWS + 7)]
    shown = is_html(html.table((evil, "n"), rows) + html.text([evil]) + html.framed(evil, evil, 9)
                    + html.aggregation(evil, {(evil, 1): 2, ("b",): [{"from": 1, "count": 3}]}))
    assert evil not in shown and "and 7 more" in shown


def test_counts_by_stack_become_a_flame_graph(ipython):
    ipython.run_cell_magic("dtrace", "-c 'strtoul(\"12\", 0, 10)'",
                           "kinst::strtoul: { @[stack()] = count(); }")
    graph = ipython.user_ns["traced"].flame_graph()
    assert isinstance(graph, FlameGraph)
    assert "strtoul" in is_html(graph._repr_html_()) and "<svg" in graph.svg
    assert 'sandbox="allow-scripts"' in graph._repr_html_()
    with pytest.raises(kinst_emu.KinstError, match="not an aggregation of counts by stack"):
        ipython.user_ns["traced"].flame_graph("@x")


def test_the_shell_command_executes_code_and_reports_errors(tmp_path):
    done = run("kinst", "shell", "-k", "teaching/arm64", "--memory", "64M", "-c",
               "print(call('strlen', 'hello'))")
    assert done.returncode == 0 and done.stdout.splitlines()[0] == "5", done
    done = run("kinst", "shell", "-k", "teaching/arm64", "--memory", "64M", "-c", "call('nosuch')")
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    refused(run("kinst", "shell"), "give a kernel")
    refused(run("kinst", "shell", "-k", "teaching/arm64", "--cpus", "0"), "0 CPUs")
    for option in (("--userland",), ("--memory", "1G"), ("--cpus", "2")):
        refused(run("kinst", "shell", str(tmp_path / "no.rec"), *option), option[0])
    done = run("kinst", "shell", "-k", "teaching/arm64", "--memory", "64M", "-c",
               "import sys; sys.exit(3)")
    assert done.returncode == 3
