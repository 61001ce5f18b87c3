# hvdscale. `make demo` on a fresh clone does everything; `make help` lists the targets.
# What can be set: PYTHON (a Python 3.11 or 3.12), VENV, MPI (auto, system, wheel), TORCH_INDEX
# (where CPU builds of torch are; empty for the index's own), HVDSCALE_WHEEL_DIR, TEST_WORKERS.
.DELETE_ON_ERROR:
.NOTPARALLEL:

VENV ?= .venv
MPI ?= auto
TORCH_INDEX ?=
TEST_WORKERS ?= 2
PY := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps
BUILDER := harness/detect.py $(wildcard harness/horovod_build/*.py)

.PHONY: help setup demo test lint bench soak clean distclean
help:
	@echo 'make setup   a .venv with torch, TensorFlow, MPI and a Horovod built for them'
	@echo 'make demo    set up, run the demo sweep, print its table and plots'
	@echo 'make test    set up, run the tests        make lint   style, types, layers'
	@echo 'make bench   set up, measure the harness  make clean  remove build and test leftovers'
	@echo 'make soak    set up, random sweeps with random faults for SOAK_MINUTES (45)'

setup: $(STAMPS)/horovod
	@echo '$(VENV) is set up'

$(STAMPS)/python: tools/preflight.sh tools/venv.sh
	@sh tools/venv.sh '$(VENV)'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: $(STAMPS)/python setup.cfg pyproject.toml tools/packages.sh $(wildcard constraints/*.txt)
	@sh tools/packages.sh '$(VENV)' '$(TORCH_INDEX)'
	@touch $@

$(STAMPS)/horovod: $(STAMPS)/packages $(BUILDER)
	@PIP_CONSTRAINT="$(CURDIR)/constraints/py$$($(PY) -c 'import sys; print("%d%d" % sys.version_info[:2])').txt" \
	    $(PY) -m harness.horovod_build --frameworks torch,tensorflow --gpu none --mpi '$(MPI)'
	@touch $@

demo: setup
	@$(VENV)/bin/hvdscale run demo
	@$(VENV)/bin/hvdscale collect demo
	@$(VENV)/bin/hvdscale plot demo

# Files in the order of their names, and not those of the fewest tests last: those last longest.
test: setup
	@$(PY) -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder -m 'not alone' \
	    $(PYTEST_ARGS) || [ $$? = 5 ]
	@$(PY) -m pytest -m alone $(or $(PYTEST_ARGS),tests/integration) || [ $$? = 5 ]

lint: $(STAMPS)/packages
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(PY) -m mypy
	@PYTHONPATH=. $(VENV)/bin/lint-imports
	@$(VENV)/bin/shellcheck $(wildcard tools/*.sh tools/*/*.sh .ci/run slurm/*.sbatch)

bench: setup
	@$(PY) tests/bench/run.py

soak: setup
	@$(PY) tests/soak/run.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find harness workloads tests -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf '$(VENV)'
