# Two commands, each complete on a fresh machine:
#   make run     set up, then train the built-in policy with SHEAR (SEED=0 STEPS=40 ESTIMATOR=shear)
#   make test    set up, then every test (OPENRLHF_SHEAR_TEST_PATIENCE=4: what hangs is ended four times later)
#   make test-trl, make test-verl    the tests of an integration, each in an environment of its own (.venv-trl, .venv-verl)
#   make test-trl-own TRL=FOLDER    TRL's own tests of its trainer, with TRL's and with ours; FOLDER is a clone of TRL
#   make test-long     the whole runs that make test leaves out; with them the rows of the fault bench (make test-faults)
#   make check-gradients   some minutes: the gradient that is applied beside one float32 pass (docs/correctness.md)
# and    make docs    the site of docs/, in runs/docs
#   make package    sdist and wheel, checked, and installed in an empty environment of every Python (scripts/package.sh)
SHELL := /bin/bash
VENV ?= .venv
export PATH := $(abspath $(VENV))/bin:$(PATH)
export PYTHONDONTWRITEBYTECODE :=  # else each of the tests' hundreds of processes compiles the package again

.PHONY: run run-smollm2 test test-fast test-long test-faults check-gradients test-trl test-verl test-trl-own lint lock docs package setup setup-tests
setup:
	@scripts/setup_cpu.sh $(VENV)

setup-tests: setup
	@scripts/setup_tests.sh $(VENV)

run: setup
	examples/scripts/train_shear_arithmetic.sh

run-smollm2: setup
	examples/scripts/train_shear_smollm2.sh

test: setup-tests
	ruff check . && ruff format --check . && python scripts/prose.py && python -m mypy
	python benchmarks/mutations.py --list >/dev/null
	python -m pytest tests/unit tests/ways -n 3 --dist worksteal --durations 15
	python -m pytest tests/distributed -n 2 --dist loadfile --no-loadscope-reorder --durations 15

test-fast: setup-tests
	python -m pytest tests/unit -n 3 --dist worksteal

test-long: setup-tests
	python -m pytest tests/unit tests/distributed -m "long or faults" -n 2 --dist loadfile --no-loadscope-reorder --durations 15

test-faults: setup-tests
	python -m pytest tests/distributed/test_faults.py -m faults

check-gradients: setup-tests
	python benchmarks/gradients.py

test-trl test-verl: test-%:
	@scripts/setup_integration.sh $* .venv-$*
	.venv-$*/bin/python -m pytest tests/$* tests/ways $(if $(filter trl,$*),-n 2 --dist worksteal)

test-trl-own:
	@scripts/setup_integration.sh trl .venv-trl
	.venv-trl/bin/python scripts/trl_own_tests.py $(TRL)

lint: setup
	ruff check --fix . && ruff format . && python scripts/prose.py && python -m mypy

lock:
	scripts/lock.sh

package:
	scripts/package.sh

docs: setup
	NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict
	@echo "runs/docs/index.html; its search needs a server: python -m http.server --directory runs/docs"
