#!/bin/sh
# Demonstrate the main features on the teaching kernels, in about twenty seconds after the setup.
set -eu

say() {
	printf '\n%s\n' "$*"
}

show() {
	printf '\n$ %s\n' "$*"
	eval "$@"
}

# Run a command like show, and store the line with its digest in $digest.
show_digest() {
	printf '\n$ %s\n' "$*"
	shown=$(eval "$@")
	printf '%s\n' "$shown"
	digest=$(printf '%s\n' "$shown" | grep '^digest ')
}

say "kinst-emu is a DTrace for the FreeBSD kernel. It boots the kernel on an emulated machine inside Python,
and you can put a probe on any instruction of the kernel. Use it to follow a code path until you
understand it, to see how a breakpoint works, or to test code that displaces instructions. This demo
uses a small teaching kernel, so nothing has to be downloaded. Like FreeBSD, it has exception vectors,
page tables, interrupts, threads and a console."

say "1. Boot the teaching kernel on an emulated amd64 machine. Its console accepts commands. We type
   'strings', which prints the length and the CRC-32 of the string \"hello\", and stop at the prompt."
show "kinst boot -k teaching/amd64 --type 'strings\r'"

say "2. Call a kernel function from outside. This also works with the FreeBSD kernel:"
show "kinst call -k teaching/amd64 'crc32(0, \"hello\", 5)'"

say "3. Disassemble a function. A probe replaces an instruction with a breakpoint. The original instruction
   is displaced, which means that it is executed elsewhere. The last column shows how: a copy runs in a
   trampoline (a few bytes of memory for this purpose), or the tracer emulates the instruction, because
   a jump or a return must go where the original goes."
show "kinst disas -k teaching/amd64 strlen"

say "4. Put one probe on the comparison in the loop (offset 16, the target of the jne), with a short Python
   program. The breakpoint is the one-byte instruction INT3 (cc). When the CPU executes it, the CPU takes
   an exception. The kernel saves all registers in a trap frame and calls the tracer, which prints a
   register. The kernel then returns into the trampoline, which contains the displaced instruction and a
   jump to the instruction after the probe."
show "python examples/one_probe.py"

say "5. Do the same with DTrace, on arm64. The first command traces the entry and the return of functions.
   The second traces charge, an inline function. The compiler has put five copies of it into other
   functions, and the probe is on each of them. This call runs the copy in account, at offset 24 (0x18)."
show "kdtrace -k teaching/arm64 -n fbt::strlen: -n fbt::crc32: -c 'crc32(0, \"hi\", strlen(\"hi\"))'"
show "kdtrace -k teaching/arm64 -n kinst::charge:entry --stack -c 'account(5)'"

say "6. Check how instructions are displaced. Each instruction is executed in place and displaced, from two
   random states. The registers, flags and memory afterwards must be equal. (An instruction that uses its
   own address, such as this lea, is rewritten before it is copied.)"
show "kinst relocate --arch amd64 --assemble 'call qword ptr [r12 + 8]; lea rax, [rip + 16]'"

say "7. Check that a run is deterministic. The clock of the machine counts instructions, and nothing depends
   on the host's clock. The digest covers all memory, registers and devices. It stays the same when every
   function is probed:"
show_digest "kinst boot -q -k teaching/riscv64 --digest"
untraced=$digest
show_digest "kdtrace -k teaching/riscv64 --digest -n fbt::: -c boot | tail -n 4"
if [ "$digest" = "$untraced" ]; then
	say "   The two digests are the same."
else
	say "   ERROR: THE DIGESTS DIFFER. The probes have changed the run."
	exit 1
fi

say "8. Explain the probe of step 4 in detail. The page shows the bytes, what the CPU saves, the trap frame,
   the trampoline and the way back:"
show "kinst explain -k teaching/amd64 strlen:16 -c 'strlen(\"hello\")' --html explanation.html"
say "   Open $PWD/explanation.html in a browser; the keys n and p go through the steps. To read it in a
   terminal: .venv/bin/kinst explain -k teaching/amd64 strlen:16 -c 'strlen(\"hello\")'"

say "Next steps:
   FreeBSD kernel    .venv/bin/kinst images fetch 15.0-RELEASE/amd64
                     then use -k 15.0-RELEASE/amd64 with boot, call, disas and kdtrace, and with
                     functions of FreeBSD, such as malloc; it boots in about a second
   Python            docs/python.md
   Tutorial          docs/tutorial.md (one hour)
   Help              .venv/bin/kdtrace --help; every command has examples"
