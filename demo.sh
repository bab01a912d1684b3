#!/bin/sh
# Shows the main job on the teaching kernel: boot, call, trace, on three architectures.
set -eu

show() {
	printf '\n$ %s\n' "$*"
	eval "$@"
}

show "kinst boot -k teaching/amd64 --type 'strings\r'"
show "kinst call -k teaching/arm64 'crc32(0, \"hello\", 5)'"
show "kinst call -k teaching/riscv64 'memcpy(buf(16), \"a trampoline\", 13)' --show arg0"
for arch in amd64 arm64 riscv64; do
	show "kdtrace -k teaching/$arch -n 'kinst::strlen:' -c 'strlen(\"hi\")'"
done
show "kdtrace -k teaching/amd64 -n 'kinst::classify:0' -n 'kinst::fibonacci:0' -c 'classify(4, 3)'"
show "kdtrace -k teaching/riscv64 --trap-path direct -n 'fbt:::entry' -c boot"
show "kinst relocate -k teaching/arm64 strlen crc32"
