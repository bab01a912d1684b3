import os
import subprocess
import sys

import pytest

from tests.conftest import ARCHES

PROJECT = """
    from kinst_emu import assert_relocates

    def test_one_changes_the_kernel(kernel):
        kernel.probe("kinst::strlen:0")
        kernel.registers[next(iter(kernel.registers))] = 12345
        kernel.call("strlen", "hello")
        assert kernel.registers[next(iter(kernel.registers))] == 12345

    def test_the_other_does_not_see_it(kernel):
        assert kernel.registers[next(iter(kernel.registers))] != 12345
        with kernel.probe("kinst::strlen:0") as probes:
            assert kernel.call("strlen", "hello") == 5
        assert probes.count == 1

    def test_relocation():
        assert assert_relocates("riscv64", "0505") == ["copy"]
"""


def pytest_of(directory, *arguments):
    """Run pytest in a project, with kinst-emu's plugin as the only one."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "kinst_emu.pytest_plugin", "-q", "-p",
         "no:cacheprovider", *arguments],
        cwd=directory, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
             "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])})


def write(directory, text):
    (directory / "pytest.ini").write_text("[pytest]\n")
    lines = text.strip("\n").splitlines()
    (directory / "test_it.py").write_text("\n".join(line[4:] for line in lines) + "\n")


def test_each_test_gets_a_freshly_booted_kernel(tmp_path):
    write(tmp_path, PROJECT)
    kernels = [f"--kinst-kernel=teaching/{arch}" for arch in ARCHES]
    result = pytest_of(tmp_path, *kernels)
    assert "7 passed" in result.stdout, result.stdout + result.stderr


def test_a_missing_kernel_is_reported_in_one_line(tmp_path):
    write(tmp_path, PROJECT)
    result = pytest_of(tmp_path, "--kinst-kernel", "nowhere", "-k", "other")
    assert result.returncode == 1
    assert "fixture 'kernel': nowhere: no such file" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_a_wrong_relocation_shows_both_states(monkeypatch):
    from kinst.relocation.trap import TRAPS
    from kinst.relocation.verdict import Copy
    from kinst_emu import assert_relocates

    instructions = type(TRAPS["amd64"].instructions)
    right = instructions.classify
    monkeypatch.setattr(instructions, "classify", lambda self, code, address:
                        (right(self, code, address)[0], Copy()))
    with pytest.raises(AssertionError) as failure:
        assert_relocates("amd64", "lea 16(%rip), %rax")
    text = str(failure.value)
    assert "does not relocate" in text and "rax:" in text
    assert "in place:  pc=" in text and "displaced: pc=" in text


@pytest.mark.parametrize("code, says", [
    ("", "contains no instruction"), (b"", "code is empty"),
    ("0f", "not a complete amd64 instruction"),
    ("nonsense %rax", "is not an instruction"),
])
def test_code_that_is_not_an_instruction_is_refused(code, says):
    from kinst_emu import KinstError, assert_relocates

    with pytest.raises(KinstError, match=says):
        assert_relocates("amd64", code)


def test_an_unknown_architecture_is_refused():
    from kinst_emu import KinstError, assert_relocates

    with pytest.raises(KinstError, match="unknown architecture 'mips': choose one of amd64"):
        assert_relocates("mips", "00")
