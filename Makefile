# make demo      set everything up and show the main features on the teaching kernels
# make test      set everything up, lint, and run the tests that need no FreeBSD kernel
# make full      run all tests: also those on FreeBSD kernels, which are in KINST_KERNELS=DIR or
#                registered with 'kinst images', and those of which 'make test' runs a part
#                (tests/slow.py)
# make check     lint and run the core tests, in less than a minute, for use during development
# make images    build the teaching kernels and the userland for each architecture
# make sanitize  build the native code with AddressSanitizer and UndefinedBehaviorSanitizer, and run
#                the tests with it
# make docs      build the documentation as a web site in build/site
# make man       generate the manual pages in build/man
# make wheels    build manylinux wheels with the kernels, the userland and the manual pages in
#                build/wheels, for each supported Python of this machine, or for those that
#                PYTHONS="python3.12 ..." names
# make bench     run the benchmarks (FreeBSD kernels: KINST_KERNELS=DIR)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Stamp of the packages for tests and documentation
DEV := $(VENV)/.developing
SOURCES := $(wildcard images/teaching/*.[chS] images/teaching/*/*.[chS] images/teaching/*/*.ld \
	images/teaching/*/target images/races/*.[ch] images/races/*/*.h)
KERNELS := $(patsubst images/teaching/%/target,images/build/%/kernel,\
	$(wildcard images/teaching/*/target))

PROGRAMS := $(wildcard images/userland/*.[ch] images/userland/*/*.h images/userland/*/target)
ROOTS := $(patsubst images/userland/%/target,images/build/%/root.ufs,\
	$(wildcard images/userland/*/target))

.PHONY: all demo check test full images lint bench sanitize clean setup docs man wheels

all: setup

setup: $(DEV)

NATIVE := $(foreach place,emu/* emu/*/* kinst/* dwarf dtrace/*, \
	$(foreach kind,pyx pxd pxi,$(wildcard $(place)/*.$(kind))))

ROOMS := emu kinst dwarf images dtrace kinst_emu

$(STAMP): pyproject.toml setup.py $(NATIVE) setup-system.sh setup-python.sh native_cache.py
	PYTHON=$(PYTHON) sh ./setup-python.sh run
	touch $@

$(DEV): pyproject.toml | $(STAMP)
	sh ./setup-python.sh dev
	touch $@

$(KERNELS) &: $(SOURCES) images/build_teaching.py images/compiler.py $(STAMP)
	sh ./setup-system.sh kernels
	$(BIN)/python -m images.build_teaching

$(ROOTS) &: $(PROGRAMS) images/build_userland.py images/compiler.py images/ufs.py $(STAMP)
	sh ./setup-system.sh kernels
	$(BIN)/python -m images.build_userland

images: $(KERNELS) $(ROOTS)

demo: $(STAMP) $(KERNELS) $(ROOTS)
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh ./demo.sh

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/mypy examples
	$(BIN)/mypy --config-file tests/mypy.ini tests
	MYPYPATH=bench $(BIN)/mypy --config-file tests/mypy.ini --scripts-are-modules \
		$(filter-out %.py %.c %__pycache__,$(wildcard bench/*))

CORE := tests/emu/unicorn tests/kinst/code tests/kinst/probes/test_dispatch.py tests/kinst/providers/test_provider.py \
	tests/dtrace/bpf tests/dtrace/run tests/dwarf tests/test_house.py

check: lint $(KERNELS) $(ROOTS)
	$(BIN)/python -m pytest -q -n auto --dist worksteal $(CORE)

# Tests that need a browser or the LLVM tools are skipped, with a message, if those are missing.
test: lint $(KERNELS) $(ROOTS)
	sh ./setup-system.sh qemu
	sh ./setup-system.sh witnesses || true
	env -u KINST_KERNELS -u KINST_FULL $(BIN)/python -m pytest -n auto --dist worksteal --ignore tests/real
	@echo "Not run: slow tests (tests/slow.py) and those on FreeBSD kernels: make full"

full: $(DEV) $(KERNELS) $(ROOTS)
	sh ./setup-system.sh qemu
	sh ./setup-system.sh witnesses || true
	KINST_FULL=1 $(BIN)/python -m pytest -n auto --dist worksteal

docs: $(DEV)
	$(BIN)/sphinx-build -q -W --keep-going -b html -d build/doctrees docs build/site
	@echo build/site/index.html

# The commit time replaces the build time, so that two builds of a commit are identical.
EPOCH = $(shell git log -1 --format=%ct)

man: $(DEV)
	SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/python docs/man.py build/man

wheels: images man
	sh ./make-wheels.sh

# Build in a copy of the source tree, so that the normal build stays intact.
SANITIZED := build/sanitize
SANITIZERS := -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined \
	-fno-omit-frame-pointer

sanitize: $(DEV) $(KERNELS)
	sh ./setup-system.sh qemu
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	cp -R $(ROOMS) tests bench docs examples pyproject.toml setup.py $(SANITIZED)/
	cd $(SANITIZED) && find . -name '*.so' -delete
	cd $(SANITIZED) && CFLAGS="$(SANITIZERS)" $(CURDIR)/$(BIN)/python setup.py -q build_ext \
		--inplace --force
	cd $(SANITIZED) && PYTHONPATH="$$PWD:$$PWD/tests/sanitizer" \
		LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0:log_path=$$PWD/found \
		UBSAN_OPTIONS=print_stacktrace=1:log_path=$$PWD/found \
		$(CURDIR)/$(BIN)/python -m pytest -n auto --dist worksteal \
		tests/emu tests/kinst tests/dwarf tests/dtrace tests/kinst_emu
	! cat $(SANITIZED)/found.* 2>/dev/null | grep -E "ERROR: AddressSanitizer|runtime error"

bench: $(DEV)
	bench/boot
	bench/snapshot
	bench/probes
	bench/actions
	bench/dwarf
	bench/answers
	bench/sweep

clean:
	rm -rf $(VENV) images/build build *.egg-info
	rm -f $(patsubst %.pyx,%.c,$(filter %.pyx,$(NATIVE))) emu/_shared.c
	find $(ROOMS) -name '*.so' -delete
