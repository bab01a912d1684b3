"""Assembler for instruction text, based on keystone."""

import re

from emu.arch.architectures import ARCHITECTURES
from emu.host.errors import KinstError
from emu.host.extras import need

MAX_TEXT = 4096
# Matches decimal numbers, which keystone would read as hexadecimal.
DECIMAL = re.compile(r"(?<![\w.])[1-9]\d{0,19}\b(?!\.\d)")


def assemble(arch: str, text: str) -> list[tuple[str, bytes]]:
    """Assemble a text and return each instruction with its bytes.

    :param text: instructions, separated by ``;`` or line ends.
    :raises KinstError: when a line is not an instruction of ``arch``, or without keystone.
    """
    need("assembler", "--assemble")
    if len(text) > MAX_TEXT:
        raise KinstError(f"--assemble: the text is longer than {MAX_TEXT} characters")
    lines = [line.strip() for line in text.replace("\n", ";").split(";")]
    instructions = [(line, _instruction(arch, line)) for line in lines if line]
    if not instructions:
        raise KinstError("--assemble: the text contains no instruction")
    return instructions


def _length(arch: str, code: bytes) -> int:
    return ARCHITECTURES[arch].instruction_length(code[:15])


def _instruction(arch: str, line: str) -> bytes:
    import keystone

    architecture = ARCHITECTURES[arch]
    engine = architecture.assembler(line)
    if engine is None:
        raise KinstError(f"--assemble: keystone {keystone.__version__} does not support {arch}; "
                         "give bytes with --encodings")
    wrong = f"--assemble: '{line[:60]}' is not an instruction of {arch}"
    try:
        text = DECIMAL.sub(lambda number: hex(int(number[0])), line)
        code, _count = engine.asm(text.encode("ascii", "replace"),
                                  architecture.assembly_address)
    except keystone.KsError as error:
        raise KinstError(f"{wrong}: {error.message}") from None
    if not code or _length(arch, bytes(code)) != len(code):
        raise KinstError(f"{wrong}; give one instruction, or separate multiple instructions with "
                         "';'")
    return bytes(code)
