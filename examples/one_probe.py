"""One probe on one instruction, looked at from all sides."""

import sys

import kinst_emu

kernel = kinst_emu.open(sys.argv[1] if len(sys.argv) > 1 else "teaching/amd64")
machine = kernel.boot()
instruction = kernel.instructions("strlen")[4]
state = machine.keep()


def in_memory() -> str:
    return machine.read(instruction.address, len(instruction.code)).hex(" ")


def look(firing: kinst_emu.Firing) -> None:
    shown = " ".join(f"{name}={firing.registers[name]:#x}" for name in list(firing.registers)[:6])
    print(f"  it fires, after {firing.instructions} instructions: {shown}")


print(f"strlen+{instruction.offset} is `{instruction.text}`: {in_memory()}")
length = machine.call("strlen", "hi")
untouched = machine.digest()
machine.restore(state)

with machine.probe(f"kinst::strlen:{instruction.offset}", look):
    print(f"with a probe on it, memory holds a breakpoint:  {in_memory()}")
    probed = machine.call("strlen", "hi")

print(f"strlen(\"hi\") is {length} without the probe, {probed} with it")
print(f"the machine afterwards: {untouched[:16]}... without, {machine.digest()[:16]}... with")
