#!/bin/sh
# Install the missing Debian packages of a stage: setup-system.sh build|kernels|qemu|witnesses
set -eu

missing=""

need() { # need COMMAND PACKAGE...
	command -v "$1" >/dev/null 2>&1 && return 0
	shift
	missing="$missing $*"
}

look() { # look STAGE: add the stage's missing packages to $missing
	case "$1" in
	build)
		need gcc gcc libc6-dev
		"${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null ||
			missing="$missing python3-venv"
		"${PYTHON:-python3}" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
			missing="$missing python3-dev libc6-dev"
		;;
	kernels)
		need clang clang
		need ld.lld lld
		;;
	qemu)
		need qemu-system-x86_64 qemu-system-x86 seabios
		need qemu-system-aarch64 qemu-system-arm
		need qemu-system-riscv64 qemu-system-misc opensbi
		need gdb-multiarch gdb-multiarch
		;;
	witnesses) # independent tools that tests compare our results with
		need chromium chromium
		need llvm-symbolizer llvm
		;;
	*)
		echo "usage: setup-system.sh build|kernels|qemu|witnesses" >&2
		exit 2
		;;
	esac
}

refuse() { # refuse WHY: exit with a message that lists the missing packages of all stages
	missing=""
	for stage in build kernels qemu; do look "$stage"; done
	[ "$asked" != witnesses ] || look witnesses
	echo "setup-system.sh: $1$missing" >&2
	exit 1
}

asked="${1:-}"
look "$asked"
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null 2>&1 ||
	refuse "cannot install packages without apt-get; install these (Debian names):"
sudo=""
if [ "$(id -u)" -ne 0 ]; then
	sudo="sudo"
	# Without a terminal, sudo cannot ask for a password.
	if ! command -v sudo >/dev/null 2>&1 || { ! [ -t 0 ] && ! sudo -n true 2>/dev/null; }; then
		refuse "packages are missing; run as root: apt-get install"
	fi
fi
echo "setup-system.sh: installing$missing" >&2
echo "(without the output of apt-get; this may take minutes)" >&2
# The lists of packages may be those of an earlier step.
[ -n "$(find /var/lib/apt/lists -maxdepth 1 -name '*Packages*' -cmin -30 2>/dev/null)" ] ||
	$sudo apt-get -qq update
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $sudo apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $missing >/dev/null
