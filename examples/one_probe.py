"""One probe on one instruction, looked at from all sides."""

import kinst_emu

kernel = kinst_emu.open("teaching/amd64")
machine = kernel.boot()
instruction = next(i for i in kernel.instructions("strlen") if i.text.startswith("cmp"))
state = machine.keep()


def in_memory() -> str:
    return machine.read(instruction.address, len(instruction.code)).hex(" ")


def look(firing: kinst_emu.Firing) -> None:
    print(f"  the probe fires: rax is {firing.registers['rax']:#x}")


print(f"strlen+{instruction.offset}, {instruction.text}: memory holds {in_memory()}")
length = machine.call("strlen", "hi")
untouched = machine.digest()
machine.restore(state)

with machine.probe(f"kinst::strlen:{instruction.offset}", look):
    print(f"probed, memory holds {in_memory()}")
    probed = machine.call("strlen", "hi")

same = "the same" if machine.digest() == untouched else "ANOTHER"
print(f"strlen(\"hi\") gave {length} without the probe and {probed} with it; the machine is in "
      f"{same} state, to the last bit")
