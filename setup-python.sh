#!/bin/sh
# Set up .venv: setup-python.sh run|dev
#   run  the packages that kinst-emu needs, and its native modules
#   dev  also the packages for tests, documentation and optional features
set -eu

python="${PYTHON:-python3}"
venv=.venv
bin=$venv/bin
log=build/setup-python.log
pip="$bin/python -m pip --disable-pip-version-check --quiet"
begun=$(date +%s)
child=

say() { # say TEXT: print a step, with the seconds since the beginning
	printf '[%3d s] %s\n' $(($(date +%s) - begun)) "$1" >&2
}

during() { # during TEXT COMMAND...: run a command, and show on a terminal that it is running
	text=$1
	shift
	say "$text"
	"$@" >"$log" 2>&1 </dev/null &
	child=$!
	await "$log"
}

await() { # await LOG: wait for the command in $child
	while kill -0 "$child" 2>/dev/null; do
		[ ! -t 2 ] || printf '[%3d s]\r' $(($(date +%s) - begun)) >&2
		sleep 0.2
	done
	wait "$child" || {
		cat "$1" >&2
		echo "setup-python.sh: the step failed, with the output above" >&2
		exit 1
	}
	child=
}

finish() { # end what runs in the background; apt-get must not be interrupted
	status=$?
	trap - EXIT INT TERM
	[ -z "$child$download" ] || kill $child $download 2>/dev/null || true
	if [ -n "$packages" ] && kill -0 "$packages" 2>/dev/null; then
		say "waiting for Debian's packages"
	fi
	wait
	exit "$status"
}

names() { # names build|run|dev: write the requirements in pyproject.toml to a file
	"$bin/python" -c 'import sys, tomllib
found = tomllib.load(open("pyproject.toml", "rb"))
project = found["project"]
print(*{"build": found["build-system"]["requires"], "run": project["dependencies"],
        "dev": project["optional-dependencies"]["dev"]}[sys.argv[1]], sep="\n")' "$1" \
		>"build/$1-requirements.txt"
}

packages= download=
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p build
case "${1:-}" in
run)
	say "setting up $venv (150 MB), which takes about a minute on two processors"
	sh ./setup-system.sh build
	# The compiler for the teaching kernels is needed later.
	sh ./setup-system.sh kernels >build/setup-system.log 2>&1 </dev/null &
	packages=$!
	asks='import sys; print(sys.version_info[:2])'
	if ! "$bin/python" -m pip --version >/dev/null 2>&1 ||
		[ "$("$bin/python" -c "$asks")" != "$("$python" -c "$asks")" ]; then
		during "creating $venv" "$python" -m venv --clear "$venv"
	fi
	names build
	during "downloading Cython (5 MB)" $pip install --no-compile -r build/build-requirements.txt
	names run
	say "downloading packages (60 MB)"
	$pip install --no-compile -r build/run-requirements.txt >build/pip.log 2>&1 </dev/null &
	download=$!
	if "$bin/python" native_cache.py get; then
		say "copied the native modules from the cache; 'python native_cache.py clear' empties it"
	else
		during "compiling the native modules (40 s of one processor)" \
			"$bin/python" native_cache.py build
	fi
	child=$download download=
	await build/pip.log
	# A compat-mode editable install adds a path instead of setuptools' import finder, and
	# compileall compiles what pip would compile.  Together they save 60 ms in every command.
	KINST_PREBUILT=1 during "installing the commands" $pip install --no-build-isolation \
		--no-deps --config-settings editable_mode=compat --editable .
	during "compiling the Python files" "$bin/python" -m compileall -q -j 0 \
		emu kinst dwarf images dtrace kinst_emu
	! kill -0 "$packages" 2>/dev/null || say "waiting for Debian's packages"
	wait "$packages" || true # setup-system.sh runs again where they are needed
	packages=
	say "done: $bin/kinst and $bin/kdtrace"
	;;
dev)
	names dev
	during "downloading packages for tests and documentation (250 MB, about a minute)" \
		$pip install -r build/dev-requirements.txt
	say "done"
	;;
*)
	echo "usage: setup-python.sh run|dev" >&2
	exit 2
	;;
esac
