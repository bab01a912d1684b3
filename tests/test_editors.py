"""Tests that the debugger configurations in examples/editors work with gdb and LLDB."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from images import catalog

EDITORS = Path(__file__).resolve().parent.parent / "examples" / "editors"
KINST = [sys.executable, "-m", "kinst_emu.commands.kinst"]
with_gdb = pytest.mark.skipif(shutil.which("gdb-multiarch") is None,
                              reason="gdb-multiarch is not installed")
LLDB = shutil.which("lldb") or shutil.which("lldb-19")
with_lldb = pytest.mark.skipif(LLDB is None, reason="lldb is not installed: apt-get install lldb")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Return a directory with a kernel and a recording, named as launch.json expects."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "kernel").symlink_to(catalog.find("teaching/amd64").path)
    subprocess.run([*KINST, "call", "-k", "teaching/amd64", 'strlen("hello")', "--memory", "64M",
                    "--record", str(folder / "boot.rec")], check=True, capture_output=True)
    return folder


def served(arguments):
    """Start a gdb server; return the process, its first line of output, and its port."""
    server = subprocess.Popen([*KINST, *arguments], stderr=subprocess.PIPE, text=True)
    line = server.stderr.readline()
    return server, line, re.search(r":(\d+)'", line)[1]


@with_gdb
def test_the_launch_file_of_vs_code_starts_the_server_and_drives_gdb(workspace):
    """Imitate VS Code's C++ debugger, which starts the server and controls gdb.

    The debugger waits for the text in ``serverStarted``, and uses gdb's machine interface.
    """
    launch = json.loads((EDITORS / "launch.json").read_text().replace(
        "${workspaceFolder}", str(workspace)))
    config = launch["configurations"][0]
    arguments = shlex.split(config["debugServerArgs"])
    arguments[-1] = "0"  # let the system choose a free port
    server, line, port = served(arguments)
    assert config["debugServerPath"] == "kinst" and re.search(config["serverStarted"], line)
    assert config["miDebuggerServerAddress"] == "127.0.0.1:1234"
    output = subprocess.run(
        [config["miDebuggerPath"], "-nx", "--interpreter=mi"], capture_output=True, text=True,
        timeout=120, input="".join(f"{command}\n" for command in (
            *(f'-interpreter-exec console "{setup["text"]}"' for setup in config["setupCommands"]),
            f"-file-exec-and-symbols {config['program']}",
            f"-target-select remote 127.0.0.1:{port}", "-break-insert strlen", "-exec-continue",
            "-stack-list-frames", "-stack-list-variables --simple-values",
            "-data-list-register-values x 0", "-exec-step", "-exec-step --reverse",
            "-gdb-exit"))).stdout
    assert server.wait(60) == 0
    assert output.count("^done") >= 6 and "^error" not in output, output
    assert "^connected" in output and 'func="strlen"' in output and "hello" in output, output
    # The program stops at the attach and the breakpoint, and after the step and reverse step.
    assert output.count("*stopped") == 4, output


@with_gdb
def test_the_gdb_file_defines_working_commands(workspace):
    server, _line, port = served(["replay", str(workspace / "boot.rec"), "--gdb", "0"])
    done = subprocess.run(
        ["gdb-multiarch", "-nx", "-batch", "-ix", str(EDITORS / "kinst.gdb"),
         str(workspace / "kernel"), "-ex", f"attach-kinst {port}", "-ex", "go-to strlen",
         "-ex", "where-now", "-ex", "stepi", "-ex", "back", "-ex", "help go-to"],
        capture_output=True, text=True, timeout=120)
    assert server.wait(60) == 0
    output = done.stdout + done.stderr
    assert re.search(r"at instruction|strlen\+0x0", output) and "push   %rbp" in output, output
    assert "rror" not in done.stderr and "seek in a recording" in output, output


@with_lldb
def test_the_lldb_file_defines_working_commands(workspace):
    server, _line, port = served(["replay", str(workspace / "boot.rec"), "--gdb", "0"])
    done = subprocess.run(
        [LLDB, "-b", "-s", str(EDITORS / "kinst.lldb"), str(workspace / "kernel"),
         "-o", f"attach-kinst {port}", "-o", "breakpoint set -n strlen", "-o", "continue",
         "-o", "where-now", "-o", "bt", "-o", "detach", "-o", "quit"],
        capture_output=True, text=True, timeout=120)
    assert server.wait(60) == 0
    assert 'strlen(s="hello")' in done.stdout and "error:" not in done.stdout + done.stderr, done
