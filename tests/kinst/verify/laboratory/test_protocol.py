"""Tests of correct, mistaken and failing relocators that run in other processes."""

import sys
from pathlib import Path

import pytest

from emu.host.errors import KinstError
from kinst.verify.laboratory import protocol
from kinst.verify.laboratory.foreign import judged
from kinst.verify.laboratory.protocol import Relocator, identity

EXAMPLE = f"{sys.executable} {Path(__file__).parents[4] / 'examples' / 'relocator.py'}"
MISTAKEN = f"{sys.executable} {Path(__file__).parent / 'mistaken.py'}"


def program(tmp_path, body):
    path = tmp_path / "relocator.py"
    path.write_text("import json, sys\nfor line in sys.stdin:\n    row = json.loads(line)\n"
                    + "".join(f"    {line}\n" for line in body.splitlines()))
    return f"{sys.executable} {path}"


CODES = {
    "amd64": "90 5d c3 ff542408 41ff542408 e810000000 7402 0f8400010000 eb05 e9fbffffff e2fe "
             "488b0510000000 c7050400000001000000 488d0d00000000 ff2500000000 4889d8 f3a4 ff10",
    "arm64": "1f2003d5 c0035fd6 00013fd6 20001fd6 88000058 01000010 41000090 40000054 80000034 "
             "880078b7 0800f837 0000008b e00740f9 41000018 4100001c",
    "riscv64": "0100 13000000 6f000001 97020000 e7800500 8280 82 94 0545 99e8 63f45501 23b0a500",
}


def codes(arch):
    if arch == "riscv64":
        return [bytes.fromhex(x) for x in ("0100 13000000 6f000001 97020000 e7800500 8280 8294 "
                                           "0545 99e8 63f45501 23b0a500").split()]
    return [bytes.fromhex(x) for x in CODES[arch].split()]


@pytest.mark.parametrize("arch", sorted(CODES))
def test_our_own_tables_pass_through_the_protocol(arch):
    found = judged(EXAMPLE, arch, codes(arch), 1, 6)
    assert not [(one.code.hex(), one.differences()) for one in found if one.wrong]
    assert {"copy", "emulate"} <= {one.word for one in found}


# Mistakes of FreeBSD's kinst, described in docs/upstream.md.
UPSTREAM = [
    ("amd64", "41ff542408", "call through %r12"), ("amd64", "ff542408", "call through %rsp"),
    ("amd64", "ff142510000000", "call through an address"), ("amd64", "e205", "LOOP"),
    ("arm64", "8800c0b7", "tbnz of bit 32 and above"), ("arm64", "0800f837", "tbnz of bit 31"),
    ("arm64", "88000058", "a literal load"), ("arm64", "88000034", "cbz of half a register"),
    ("riscv64", "8294", "c.jalr to an odd address"),
]


@pytest.mark.parametrize("arch, code, what", UPSTREAM, ids=[what for _a, _c, what in UPSTREAM])
def test_upstream_mistakes_are_found_by_execution(arch, code, what):
    (one,) = judged(MISTAKEN, arch, [bytes.fromhex(code)], 1, 2)
    assert one.wrong and one.differences(), what


@pytest.mark.parametrize("arch", sorted(CODES))
def test_correct_upstream_relocations_are_not_reported(arch):
    good = {"amd64": "90 5d 7402 0f8400010000 eb05 488b0510000000 e810000000 ff10",
            "arm64": "1f2003d5 40000054 0800a836 0000008b e00740f9",
            "riscv64": "0100 13000000 97020000 63f45501 23b0a500"}[arch]
    found = judged(MISTAKEN, arch, [bytes.fromhex(x) for x in good.split()], 1, 20)
    assert not [(one.code.hex(), one.differences()) for one in found if one.wrong]


@pytest.mark.parametrize("body, says", [
    ("print('hello', flush=True)", "the answer is not a JSON object"),
    ("print(json.dumps({'id': 7, 'refuse': 'x'}), flush=True)", "the answer has the id 7"),
    ("print(json.dumps({'id': row['id']}), flush=True)", "the answer needs 'bytes'"),
    ("print(json.dumps({'id': row['id'], 'bytes': 'xx'}), flush=True)", "needs 'bytes'"),
    ("print(json.dumps({'id': row['id'], 'bytes': '90', 'back': 5}), flush=True)", "'back' is not"),
    ("sys.exit(3)", "exited with status 3"),
    ("print(json.dumps({'id': row['id'], 'bytes': '90' * 600}), flush=True)", "1 to 512"),
    ("print('x' * 200000, flush=True)", "a line of more than 65536 bytes"),
    ("print(json.dumps({'id': row['id'], 'emulate': True} if 'state' not in row else {'pc': 'a'}),"
     " flush=True)", "needs an integer 'pc'"),
    ("print(json.dumps({'id': row['id'], 'emulate': True} if 'state' not in row else "
     "{'pc': 1, 'registers': {'nothing': 1}}), flush=True)", "changes 'nothing'"),
    ("print(json.dumps({'id': row['id'], 'emulate': True} if 'state' not in row else "
     "{'pc': 1, 'vectors': {'1' * 5000: 1}}), flush=True)", "'vectors' must map"),
])
def test_an_invalid_answer_raises_a_one_line_error(tmp_path, body, says):
    with pytest.raises(KinstError, match=says) as error:
        judged(program(tmp_path, body), "amd64", [b"\x90"], 1, 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("command", ["cat", "tee /dev/null"])
def test_a_program_that_echoes_the_request_is_refused(command):
    with pytest.raises(KinstError, match="the answer repeats the request"):
        judged(command, "amd64", [b"\x90"], 1, 1)


COPIES = "print(json.dumps({'id': row['id'], 'bytes': row['bytes'], 'back': 3}), flush=True)"
EMULATES = """if 'state' in row:
    print(json.dumps({'id': row['id'], 'pc': 0}), flush=True)
else:
    print(json.dumps({'id': row['id'], 'emulate': True}), flush=True)"""


def test_an_emulation_without_a_tested_state_is_unproven(tmp_path):
    """An emulation is unproven if the instruction faults in every state."""
    (one,) = judged(program(tmp_path, EMULATES), "amd64", [bytes.fromhex("6c")], 1, 2)
    assert one.word.startswith("not executed") and one.verdict == "emulate"
    (one,) = judged(program(tmp_path, EMULATES), "amd64", [bytes.fromhex("cd03")], 1, 2)
    assert one.unproven and one.verdict == "emulate" and "faults in every state" in one.word


def test_some_states_let_a_division_succeed(tmp_path):
    for seed in range(8):
        (one,) = judged(program(tmp_path, COPIES), "amd64", [bytes.fromhex("48f7f1")], seed, 1)
        assert one.word == "copy"  # div rcx
        (one,) = judged(program(tmp_path, EMULATES), "amd64", [bytes.fromhex("48f7f1")], seed, 1)
        assert one.wrong  # the emulation sets pc to 0


@pytest.mark.parametrize("seed", range(4))
def test_a_wrongly_copied_loop_is_found_with_any_seed(seed):
    found = judged(MISTAKEN, "amd64", [bytes.fromhex(code) for code in ("e005", "e105")], seed, 1)
    assert [one.wrong for one in found] == [True, True]


def test_a_missing_or_silent_relocator_raises_a_one_line_error(tmp_path, monkeypatch):
    with pytest.raises(KinstError, match="cannot be run"):
        Relocator(str(tmp_path / "none"))
    monkeypatch.setattr(protocol, "PATIENCE", 0.2)
    with pytest.raises(KinstError, match="sent no answer within"):
        judged(program(tmp_path, "pass"), "amd64", [b"\x90"], 1, 1)


def test_a_relocator_that_does_not_read_times_out(tmp_path, monkeypatch):
    path = tmp_path / "relocator.py"
    path.write_text("import time\nwhile True:\n"
                    "    print('{\"id\": 1, \"emulate\": true}', flush=True)\n    time.sleep(60)\n")
    monkeypatch.setattr(protocol, "PATIENCE", 0.3)
    relocator = Relocator(f"{sys.executable} {path}")
    monkeypatch.setattr(protocol, "PATIENCE", 5.0)
    assert relocator.ask("amd64", 0, b"\x90", 0) == protocol.Emulates()
    monkeypatch.setattr(protocol, "PATIENCE", 0.3)
    with pytest.raises(KinstError, match="did not read its input within"):
        relocator.emulate({"x" * 300_000: 1}, lambda address, size: b"")
    relocator.close()


def test_a_refusal_is_printed_on_one_line(tmp_path):
    body = "print(json.dumps({'id': row['id'], 'refuse': 'no\\n\\x1b[31m'}), flush=True)"
    (found,) = judged(program(tmp_path, body), "amd64", [b"\x90"], 1, 1)
    assert found.word == "refuse: no??[31m"


def test_an_impossible_load_is_wrong_and_the_next_instruction_is_judged(tmp_path):
    body = """if 'state' in row:
    for page in range(60):
        print(json.dumps({'load': (page << 32) + 4092, 'size': 8}), flush=True)
        if not sys.stdin.readline():
            sys.exit(0)
    print(json.dumps({'pc': 1}), flush=True)
elif row['bytes'] == '90':
    print(json.dumps({'id': row['id'], 'emulate': True}), flush=True)
else:
    print(json.dumps({'id': row['id'], 'refuse': 'the next'}), flush=True)"""
    first, second = judged(program(tmp_path, body), "amd64", [b"\x90", b"\xcc"], 1, 1)
    assert first.wrong and "unreachable memory" in "".join(first.differences())
    assert second.word == "refuse: the next"


def test_the_identity_of_a_relocator_depends_on_its_files(tmp_path):
    command = program(tmp_path, "pass")
    before = identity(command)
    program(tmp_path, "sys.exit(0)")
    assert identity(command) != before and identity(command).startswith(command)
