"""Put one probe on one instruction; print the memory, the firing and the digest comparison."""

import kinst_emu

kernel = kinst_emu.open("teaching/amd64")
machine = kernel.boot()
instruction = next(i for i in kernel.instructions("strlen") if i.text.startswith("cmp"))
state = machine.keep()


def in_memory() -> str:
    """Return the bytes of the instruction in guest memory, in hexadecimal."""
    return machine.read(instruction.address, len(instruction.code)).hex(" ")


def look(firing: kinst_emu.Firing) -> None:
    """Print a register when the probe fires."""
    print(f"  the probe fires: rax is {firing.registers['rax']:#x}")


print(f"strlen+{instruction.offset}, {instruction.text}: memory holds {in_memory()}")
length = machine.call("strlen", "hi")
untouched = machine.digest()
machine.restore(state)

with machine.probe(f"kinst::strlen:{instruction.offset}", look):
    print(f"with the probe, memory holds {in_memory()}")
    probed = machine.call("strlen", "hi")

same = "the same" if machine.digest() == untouched else "A DIFFERENT"
print(f"strlen(\"hi\") returned {length} without the probe and {probed} with it; "
      f"both runs end in {same} state")
