#!/bin/sh
# Build a manylinux wheel in build/wheels for each supported version of Python on this machine.
#   PYTHONS="python3.12 /path/to/python3.13" sh ./make-wheels.sh: for these interpreters only
# The committed files, the built kernels and the manual pages are copied first, so that nothing else
# gets into a wheel.  Builds of the same commit with the same tools, whose versions are those of .venv,
# are identical.
set -eu

bin=$PWD/.venv/bin
wheels=$PWD/build/wheels
tree=$wheels/tree
supported="3.11 3.12 3.13 3.14"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) # replaces the time of the build
export SOURCE_DATE_EPOCH

works() { # works PYTHON VERSION: whether it is that version, with a GIL, venv and C headers
	"$1" -c 'import ensurepip, os, sys, sysconfig, venv
version, headers = f"{sys.version_info[0]}.{sys.version_info[1]}", sysconfig.get_path("include")
sys.exit(version != sys.argv[1] or sysconfig.get_config_var("Py_GIL_DISABLED") == 1
         or not os.path.exists(os.path.join(headers, "Python.h")))' "$2" 2>/dev/null
}

interpreters() { # print one interpreter of each supported version: in PATH, or of pyenv or uv
	for version in $supported; do
		for python in "$bin/python" "python$version" \
			"${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python \
			"$HOME/.local/share/uv/python/cpython-$version".*/bin/python; do
			if command -v "$python" >/dev/null && works "$python" "$version"; then
				echo "$python"
				break
			fi
		done
	done
}

fail() { # fail TEXT
	echo "make-wheels.sh: $1" >&2
	exit 1
}

for python in ${PYTHONS-}; do
	found=no
	for version in $supported; do
		works "$python" "$version" && found=yes
	done
	[ $found = yes ] || fail "PYTHONS: $python is no Python of $supported with venv and C headers"
done
pythons=${PYTHONS:-$(interpreters)}
[ -n "$pythons" ] || fail "no Python of $supported with venv and C headers was found; set PYTHONS"
rm -rf "$wheels"
mkdir -p "$tree/build"
git archive HEAD | tar -x -C "$tree"
cp -R build/man "$tree/build/"
cp -R images/build "$tree/images/"
tools=$("$bin/python" -c 'from importlib.metadata import version
print(*(f"{name}=={version(name)}" for name in ("build", "setuptools", "Cython")))')
for python in $pythons; do
	echo "make-wheels.sh: building for $("$python" --version) ($python)" >&2
	"$python" -m venv "$wheels/venv"
	"$wheels/venv/bin/python" -m pip --quiet --disable-pip-version-check install $tools
	(cd "$tree" && CFLAGS="-O2 -g0 -ffile-prefix-map=$tree=." \
		"$wheels/venv/bin/python" -m build --wheel --no-isolation --outdir "$wheels/plain" \
		>"$wheels/log" 2>&1) || {
		cat "$wheels/log" >&2
		fail "the wheel for $python could not be built, with the output above"
	}
	rm -r "$wheels/venv"
done
PATH="$bin:$PATH" "$bin/auditwheel" repair --wheel-dir "$wheels" "$wheels"/plain/*.whl \
	>"$wheels/log" 2>&1 || {
	cat "$wheels/log" >&2
	fail "auditwheel refused a wheel, with the output above"
}
rm -r "$wheels/plain" "$tree" "$wheels/log"
ls "$wheels"/*.whl
