# setup does everything a new machine needs: a virtual environment here, and this package built into it.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PEERS := .venv-peers
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := $(wildcard src/everstep/native/*.cpp src/everstep/native/*.hpp) CMakeLists.txt pyproject.toml constraints.txt

.PHONY: setup demo check test matrix gpu carry peers crash bench clean

setup: $(STAMP)

# Two makes at once take turns here. torch comes first, and alone, so that no other package's range can choose another.
$(STAMP): $(SOURCES)
	@exec 9> .setup.lock && flock 9 && \
	if [ ! -e $(STAMP) ] || [ -n "$$(find $(SOURCES) -newer $(STAMP))" ]; then set -ex; \
	  test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	  $(PIP) torch numpy; \
	  $(PIP) "scikit-build-core>=0.10" "nanobind>=2.2" cmake ninja; \
	  $(PIP) --no-build-isolation -e ".[test]"; \
	  touch $(STAMP); \
	fi

demo: setup
	$(BIN)/python examples/demo.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A file stays with one worker: what all of its tests look at is made once.
test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not crash and not matrix" tests

# Every parallelism to every other; `test` has the half of it that meets each of them from both sides.
matrix: setup
	$(BIN)/python -m pytest -m matrix tests

# On a machine with a GPU.
gpu: setup
	$(BIN)/python -m pytest -m gpu tests

# For a GPU host that reaches no network but has torch: copy this tree there with carry/ and run bench/install_offline.sh.
CARRY_PYTHON ?= 3.12
CARRY := click execnet hypothesis iniconfig markdown-it-py mdurl msgspec nanobind packaging pathspec pluggy pygments \
  pytest pytest-timeout pytest-xdist rich safetensors scikit-build-core sortedcontainers torchdata xxhash
CARRY_PEERS := torch-checkpointing lm-resiliency
carry:
	rm -rf carry
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest carry \
	  --python-version $(CARRY_PYTHON) --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 $(CARRY) $(CARRY_PEERS)

# The real DeepSpeed, megatron-core and transformers, in an environment of their own on top of this one: the same torch,
# the same build of this package. Under this target a peer that is missing fails; elsewhere its tests are skipped.
peers: $(PEERS)/.ready
	EVERSTEP_PEERS=required $(PEERS)/bin/python -m pytest tests/peers

$(PEERS)/.ready: $(STAMP)
	@exec 9> .setup.lock && flock 9 && set -ex; \
	rm -rf $(PEERS); \
	$(PYTHON) -m venv $(PEERS); \
	below=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	above=$$($(PEERS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	echo "import site; site.addsitedir('$$below')" > "$$above/below.pth"; \
	pip="$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt"; \
	$$pip setuptools wheel; \
	$$pip --no-build-isolation "everstep[peers]"; \
	touch $@

crash: setup
	$(BIN)/python -m tests.crash
	$(BIN)/python -m pytest -n 2 --dist worksteal -m crash tests

bench: setup
	$(BIN)/python -m bench.core

clean:
	rm -rf build $(VENV) $(PEERS) .setup.lock
