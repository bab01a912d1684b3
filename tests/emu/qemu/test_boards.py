"""Tests that the teaching kernel boots unchanged in QEMU with the same console output."""

import os
import select
import shutil
import signal
import subprocess
import time

import pytest

from emu.machine.machine import Until

MACHINES = {
    "amd64": ["qemu-system-x86_64", "-M", "pc"],
    "arm64": ["qemu-system-aarch64", "-M", "virt,gic-version=2", "-cpu", "cortex-a57"],
    "riscv64": ["qemu-system-riscv64", "-M", "virt"],
}
SESSION = (b"strings\r", b"lesson\r", b"nonsense\r")
PATIENCE = 60


def qemu_session(arch, kernel):
    command = [*MACHINES[arch], "-m", "512M", "-nodefaults", "-display", "none", "-no-reboot",
               "-serial", "stdio", "-kernel", str(kernel)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    seen, end = bytearray(), time.monotonic() + PATIENCE
    try:
        for i in range(len(SESSION) + 1):
            while seen.count(b"teaching> ") <= i:
                left = end - time.monotonic()
                ready = select.select([process.stdout], [], [], max(left, 0))[0]
                data = os.read(process.stdout.fileno(), 4096) if ready else b""
                assert data, f"QEMU fell silent: {bytes(seen)!r}"
                seen += data
            if i < len(SESSION):
                process.stdin.write(SESSION[i])
                process.stdin.flush()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return bytes(seen[seen.index(b"The teaching kernel") :])


def test_an_image_prints_the_same_in_qemu_and_unicorn(fresh, arch):
    if shutil.which(MACHINES[arch][0]) is None:
        pytest.skip(f"{MACHINES[arch][0]} is not installed (make test installs it)")
    fresh.run(Until(console="teaching> "))
    for line in SESSION:
        fresh.type(line)
        fresh.run(Until(console="teaching> "))
    assert qemu_session(arch, fresh.image.path) == bytes(fresh.console.text)
