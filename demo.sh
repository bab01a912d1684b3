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

# The same, and keeps the line with the digest.
show_digest() {
	printf '\n$ %s\n' "$*"
	shown=$(eval "$@")
	printf '%s\n' "$shown"
	digest=$(printf '%s\n' "$shown" | grep '^digest ')
}

say "This is a DTrace for FreeBSD's kernel, inside Python: a machine that boots the kernel, and probes
that can be put on any of its instructions. It is for those who want to follow a path through a
kernel until they understand it, to see what a breakpoint really is, or who write the code that
displaces instructions. What follows uses a small kernel of our own, so that nothing need be fetched:
it has exception vectors, page tables, interrupts, threads and a console, as FreeBSD's has."

say "1. The kernel boots, on an amd64 machine that Python emulates. Its console takes commands; we type
   'strings', which prints the length and the CRC-32 of the word hello, and leave it at its prompt."
show "kinst boot -k teaching/amd64 --type 'strings\r'"

say "2. Its functions can be called from outside, as FreeBSD's can:"
show "kinst call -k teaching/amd64 'crc32(0, \"hello\", 5)'"

say "3. One of them, instruction by instruction. A probe puts a breakpoint in the place of an
   instruction; the instruction that was there is displaced: executed elsewhere. The last column
   says how: copied into a trampoline, a few bytes of memory of its own; or, because a jump or a
   return must end up where the original does, emulated."
show "kinst disas -k teaching/amd64 strlen"

say "4. One probe, on the comparison in the loop (offset 16, where the jne leads back to), by a short
   Python program. The breakpoint is INT3, one byte, cc. When the CPU comes to it, it takes an
   exception; the kernel saves all registers (the trap frame) and calls the tracer, which is ours;
   that prints a register and lets the kernel return into the trampoline: there the displaced
   instruction stands, and behind it the CPU is led back to the instruction that follows."
show "python examples/one_probe.py"

say "5. The same as DTrace writes it, on arm64: where functions are entered and where they return;
   then charge, an inline function: the compiler has put five copies of it into other functions, and
   a probe on it is one on each. This call comes by the copy in account, at offset 24 (0x18)."
show "kdtrace -k teaching/arm64 -n fbt::strlen: -n fbt::crc32: -c 'crc32(0, \"hi\", strlen(\"hi\"))'"
show "kdtrace -k teaching/arm64 -n kinst::charge:entry --stack -c 'account(5)'"

say "6. For those who write the code that displaces instructions: are these two displaced rightly? Each
   is executed where it stands and displaced, from two random states; registers, flags and memory must
   be equal. (What uses its own address, as the lea does, is rewritten before it is copied.)"
show "kinst relocate --arch amd64 --assemble 'call qword ptr [r12 + 8]; lea rax, [rip + 16]'"

say "7. A run is the same run every time: its clock counts instructions, nothing reads the host's. The
   digest is of all memory, registers and devices. It is the same when every function is probed:"
show_digest "kinst boot -q -k teaching/riscv64 --digest"
untraced=$digest
show_digest "kdtrace -k teaching/riscv64 --digest -n fbt::: -c boot | tail -n 4"
if [ "$digest" = "$untraced" ]; then
	say "   Both digests are the same."
else
	say "   THE DIGESTS DIFFER: the probes have disturbed the run."
	exit 1
fi

say "8. And the firing of step 4 again, told step by step: the bytes, what the CPU saves, the trap frame,
   the trampoline, the way back, on a page of its own."
show "kinst explain -k teaching/amd64 strlen:16 -c 'strlen(\"hello\")' --html explanation.html"
say "   It is here: $PWD/explanation.html (open it in a browser; n and p go through the steps). In a
   terminal: .venv/bin/kinst explain -k teaching/amd64 strlen:16 -c 'strlen(\"hello\")'"

say "FreeBSD's own kernel: '.venv/bin/kinst images fetch 15.0-RELEASE/amd64' (its boot takes a second),
then -k 15.0-RELEASE/amd64 with boot, call, disas and kdtrace, with functions of its own: malloc, say.
From Python: docs/python.md. An hour of learning: docs/tutorial.md. Every command has examples:
.venv/bin/kdtrace --help"
