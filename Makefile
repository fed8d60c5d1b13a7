# make demo and make test work from a bare clone; both call make setup when it is needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# A CUDA machine gets the CUDA build of torch, any other the CPU one.  GPU=1 or GPU=0 overrides what nvidia-smi says.
ifndef GPU
GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo 1 || echo 0)
endif
ifneq ($(GPU),1)
CPU_INDEX := https://download.pytorch.org/whl/cpu
REACH := import urllib.request; urllib.request.urlopen("$(CPU_INDEX)/torch/", timeout=3)
# Asked only when setup runs: pip would retry an unreachable index for minutes.
TORCH = -c constraints-cpu.txt $(shell $(PYTHON) -c '$(REACH)' 2>/dev/null && echo --extra-index-url $(CPU_INDEX))
endif
# The extras of development; with the groups dev and docs they are what constraints.txt pins.
EXTRAS := excel,holidays,onnx,serve
COMMA  := ,
# Two OpenMP threads that wait for each other beside other work are slower than one.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup demo test test-all test-gpu gpu-packages lint format type docs pictures lock wheel fuzz bench-cpu bench-gpu ablation clean

help:              ## this list
	@grep -E '^[a-z-]+: .*##' Makefile | sed -E 's/: [^#]*##/:/'

setup: $(VENV)/ready  ## make .venv and install socialx into it

$(VENV)/ready: pyproject.toml constraints.txt constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check 'pip>=25.1'  # the first pip that knows --group
	$(BIN)/pip install --quiet -c constraints.txt $(TORCH) -e '.[$(EXTRAS)]' --group dev
	@touch $@

demo: setup        ## raw METR-LA excerpt -> HDF5 -> training -> profile -> scores -> forecast, about 3 minutes
	PATH="$(BIN):$$PATH" sh examples/demo.sh

test: setup        ## the fast tests; T=model for those of one room
	$(BIN)/python -m pytest -n 2 $(if $(T),tests/$(T))

test-all: setup    ## all tests that need no GPU
	$(BIN)/python -m pytest -n 2 -m 'not gpu'

fuzz: setup        ## corrupted and odd inputs of every kind, N of them, and kills of every writing command
	$(BIN)/python -m tests.fuzz -n $(or $(N),2000)
	$(BIN)/python -m tests.fuzz kills -n 50

# No setup here: a CUDA machine may be offline, and its own python may have torch and the packages already.  What it
# lacks can be brought along: make gpu-packages on a machine with network, then copy the tree.
GPU_PACKAGES := .gpu-packages
ifneq ($(wildcard $(BIN)/python),)
GPU_PYTHON = PYTHONPATH=".$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python
else
GPU_PYTHON = PYTHONPATH=".:$(GPU_PACKAGES)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON)
endif
RESULTS = $(or $(OUT),benchmarks/results)

# Two calls: what compiles is slow, a trace needs the card for itself, and a failed recording ends those of a process.
GPU_SLOW := compiled or test_profile or recording_that_fails
GPU_PYTEST = mkdir -p $(RESULTS) && $(GPU_PYTHON) -m pytest -m gpu tests/gpu --timeout 300

test-gpu:          ## the tests that need a CUDA device, with .venv if it is there, else with python3
	$(GPU_PYTEST) -n 4 -k "not ($(GPU_SLOW))" --junitxml $(RESULTS)/test-gpu.xml

test-gpu-slow:     ## of these the tests that compile or trace, one at a time
	$(GPU_PYTEST) -n 0 -k "$(GPU_SLOW)" --junitxml $(RESULTS)/test-gpu-slow.xml

gpu-packages:      ## what an offline CUDA machine may lack, for its python 3.12 on x86-64, into .gpu-packages
	$(PYTHON) -m pip install --quiet --upgrade --target $(GPU_PACKAGES) --only-binary=:all: --python-version 3.12 \
		--platform manylinux_2_17_x86_64 --platform manylinux_2_28_x86_64 pydantic nvidia-ml-py
	$(PYTHON) -m pip install --quiet --upgrade --target $(GPU_PACKAGES) --no-deps xlstm mlstm_kernels

lint: setup        ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup      ## let ruff format everything
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: setup        ## mypy
	$(BIN)/mypy

docs: setup        ## the pages that the code writes, and the site of all pages in site/
	$(BIN)/python -m docs.generate
	$(BIN)/pip install --quiet -c constraints.txt --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: setup        ## renew constraints.txt: the newest versions that go with the torch of constraints-cpu.txt
	$(BIN)/pip install --quiet uv
	grep '^torch' constraints-cpu.txt | $(BIN)/uv pip compile pyproject.toml --quiet --universal --upgrade --no-annotate \
		--python-version 3.11 --constraint /dev/stdin --custom-compile-command "make lock" \
		--group dev --group docs $(subst $(COMMA), --extra ,$(COMMA)$(EXTRAS)) --output-file constraints.txt

wheel:             ## build the wheel, install it into a fresh environment outside the repository, forecast a table there
	rm -rf dist
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	fresh=$$(mktemp -d) && trap 'rm -rf '$$fresh EXIT && $(PYTHON) -m venv $$fresh/venv && \
	$$fresh/venv/bin/pip install --quiet --disable-pip-version-check $(TORCH) dist/*.whl && \
	cp examples/data/city.csv.gz examples/data/city_sensors.csv $$fresh && cd $$fresh && \
	venv/bin/socialx predict zero-shot --data city.csv.gz --meta-csv city_sensors.csv --units mph \
		--timezone America/Los_Angeles --output next_hour.csv && head -n 2 next_hour.csv

pictures: setup    ## every picture of README and docs; LA=metr_la.h5 BAY=pems_bay_74.h5, and chromium
	PATH="$(BIN):$$PATH" PYTHONPATH=. sh docs/draw_pictures.sh

bench-cpu: setup   ## encoder against the xlstm package, pooling paths; one thread, about 6 minutes
	$(BIN)/python benchmarks/layers_cpu.py

# One call of nine minutes.  What git ignores must be brought along: $(GPU_PACKAGES).  ONLY="large large-compiled" measures these
# rows alone, and keeps what $(RESULTS) has of the others on this card.
bench-gpu:         ## how fast a training step is, and what changes that: on a CUDA device, offline; ONLY=shipped
	$(GPU_PYTHON) benchmarks/gpu.py $(if $(ONLY),--only $(ONLY)) $(if $(DATA),--data $(DATA)) --output $(RESULTS)

ablation: setup    ## what each part of the model is worth; DATA=metr_la.h5, about 2 hours on one core
	$(BIN)/python benchmarks/ablation.py --data $(or $(DATA),metr_la.h5)

clean:             ## remove what make made
	rm -rf $(VENV) demo runs dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
