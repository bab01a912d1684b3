#!/bin/sh
# Tells, in two minutes on the teaching kernel, what this is for.
set -eu

say() {
	printf '\n%s\n' "$*"
}

show() {
	printf '\n$ %s\n' "$*"
	eval "$@"
}

say "1. This is a kernel. It boots inside a Python process, on an emulated amd64 machine: small,
   but with vectors, page tables, interrupts and a console, as FreeBSD's has. Type at it:"
show "kinst boot -k teaching/amd64 --type 'strings\r'"

say "2. Its functions can be called, like those of FreeBSD's own kernel:"
show "kinst call -k teaching/amd64 'crc32(0, \"hello\", 5)'"

say "3. This is one of them, instruction by instruction. On the right: what a probe would make of
   each. A breakpoint takes the instruction's place, so it must be executed elsewhere: copied
   into a trampoline, or emulated when it would not do the same there."
show "kinst disas -k teaching/amd64 strlen"

say "4. One probe. A breakpoint (cc, INT3) is written over the instruction; the CPU traps; the kernel
   builds its trap frame and comes to us; the instruction is executed in a trampoline; the kernel
   goes on as if nothing had happened:"
show "python examples/one_probe.py"

say "5. The same as DTrace says it, on arm64, where a function is entered and left, with its callers:"
show "kdtrace -k teaching/arm64 -n fbt::fibonacci:entry --stack -c 'fibonacci(2)'"

say "6. Those who write relocation code ask about an instruction. It is executed in place and
   displaced, from the same random states; everything must be equal:"
show "kinst relocate --arch amd64 --assemble 'call *8(%r12); lea 16(%rip), %rax; cli'"

say "7. Nothing reads the host's clock: a run is the same run every time, probed or not."
show "kinst boot -q -k teaching/riscv64 --digest"
show "kdtrace -q -k teaching/riscv64 --digest -n 'fbt:::' -c boot"

say "A real kernel: kinst images fetch 15.0-RELEASE/amd64, and -k 15.0-RELEASE/amd64 in all of these.
From Python: docs/python.md. The commands are in .venv/bin; each has examples: kinst call --help"
