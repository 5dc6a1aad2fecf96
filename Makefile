# Everything a person does with this repository. Each target works in a bare checkout: what it needs is made first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# cpu, or gpu: NVIDIA with CUDA 13, in an environment of its own. make serve DEVICE=gpu, make test DEVICE=gpu, …
DEVICE ?= cpu
ifeq ($(filter cpu gpu,$(DEVICE)),)
$(error DEVICE is $(DEVICE): cpu or gpu is allowed)
endif
ifeq ($(DEVICE),gpu)
VENV := .venv-gpu
SERVER_LOCK := gpu
DEV_LOCK := gpu-dev
else
VENV := .venv
SERVER_LOCK := server
DEV_LOCK := dev
endif
BIN := $(VENV)/bin
MODELS := .cache/models
CLIPS := .cache/clips
GPU_CLIPS := .cache/gpu-clips
GHZ := .tools/bin/ghz
GHZ_VERSION := v0.120.0
COLLECTOR := .tools/otelcol/otelcol
COLLECTOR_VERSION := v0.165.0
BASELINE := .tools/baseline
UV := .tools/uv/bin/uv
UV_VERSION := 0.13.8
PACKAGES := pyproject.toml clients/python/pyproject.toml
# Passed on to the program behind a target: make test ARGS="-k pool", make serve ARGS="--config keyglance.toml".
ARGS ?=

demo serve ghz bench baselines load soak $(MODELS)/.installed: export KEYGLANCE_MODELS__FOLDER ?= $(CURDIR)/$(MODELS)

.PHONY: help
help:  ## Say what there is
	@awk -F':.*  ## ' '/^[a-z]+:.*  ## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.server $(MODELS)/.installed $(CLIPS)/.fetched  ## Label a real clip with a real server, show the trace, stop
	@$(BIN)/python scripts/demo.py $(or $(CLIP),$(CLIPS)/bikes.mp4) $(ARGS)

.PHONY: serve
serve: $(VENV)/.server $(MODELS)/.installed  ## Run the server on 127.0.0.1:50051 until Ctrl-C
	@KEYGLANCE_TELEMETRY__LOG_FORMAT=$${KEYGLANCE_TELEMETRY__LOG_FORMAT:-text} $(BIN)/keyglance-server $(ARGS)

.PHONY: test
test: $(VENV)/.dev $(MODELS)/.installed $(CLIPS)/.fetched  ## Run all tests
	$(BIN)/python -m pytest $(ARGS)

.PHONY: lint
lint: $(VENV)/.dev  ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: format
format: $(VENV)/.dev  ## Put the code into its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: types
types: $(VENV)/.dev  ## Check types
	$(BIN)/mypy
	$(BIN)/mypy scripts/*.py

.PHONY: api
api: node_modules/.installed $(VENV)/.dev  ## Lint the API and compare it with the one before (needs Node.js)
	$(BIN)/python scripts/check_api.py

.PHONY: proto
proto: $(VENV)/.dev  ## Generate the protobuf and gRPC code anew
	$(BIN)/python scripts/generate_code.py

.PHONY: ghz
ghz: $(VENV)/.server $(MODELS)/.installed $(CLIPS)/.fetched $(GHZ)  ## A short load test with ghz (needs Go)
	$(BIN)/python -m loadtest.ghz --ghz $(GHZ) $(ARGS)

.PHONY: bench
bench: $(VENV)/.dev $(MODELS)/.installed $(CLIPS)/.fetched $(if $(filter gpu,$(DEVICE)),$(GPU_CLIPS)/.made)  ## Run the benchmarks; the figures go to loadtest/results
ifeq ($(DEVICE),gpu)
	$(BIN)/python -m loadtest.gpu --models $(MODELS) --clips $(GPU_CLIPS) $(ARGS)
else
	$(BIN)/python -m loadtest.cpu $(ARGS)
	$(BIN)/python -m loadtest.soak
	$(BIN)/python -m loadtest.soak --set server.fronts=2 --keep soak_fronts
	$(BIN)/python -m loadtest.corpus
endif

.PHONY: gpu
gpu:  ## Make the environment for an NVIDIA GPU, .venv-gpu, and check it; then add DEVICE=gpu to any target
	@$(MAKE) --no-print-directory DEVICE=gpu .venv-gpu/.server
	@scripts/install.sh gpu .venv-gpu check

.PHONY: baselines
baselines: $(VENV)/.dev $(MODELS)/.installed $(CLIPS)/.fetched $(BASELINE)/.installed  ## Compare the server with the usual ways to do its job
	@status=0; $(BIN)/python -m loadtest.baselines --model-server $(BASELINE)/bin/python $(ARGS) || status=$$?; \
	$(BIN)/python -m loadtest.load_report; exit $$status

.PHONY: load
load: $(VENV)/.dev $(MODELS)/.installed  ## Load tests: the peak, 80 % of it, three times of it, a mix of callers; a report with a picture
	@status=0; $(BIN)/python -m loadtest.saturation --keep saturation $(ARGS) || status=$$?; \
	$(BIN)/python -m loadtest.poisson --rate 1.5 --keep poisson || status=$$?; \
	$(BIN)/python -m loadtest.load_report; exit $$status

.PHONY: soak
soak: $(VENV)/.dev $(MODELS)/.installed  ## 10,000 calls, one in five given up: is all as before? ARGS="--set server.fronts=2 --keep soak_fronts"
	$(BIN)/python -m loadtest.soak $(ARGS)

.PHONY: figures
figures: $(VENV)/.dev  ## Write the figures of README and docs from loadtest/results
	$(BIN)/python -m loadtest.load_report
	$(BIN)/python scripts/readme_figures.py

.PHONY: lock
lock: $(UV)  ## Lock the dependencies; UPGRADE=1 takes newer versions
	$(call compile,server,server)
	$(call compile,dev,server) -c requirements/server.lock --group pyproject.toml:dev
	$(call compile,baseline,baseline) -c requirements/dev.lock
	$(call compile,gpu,gpu) -c requirements/server.lock
	$(call compile,gpu-torch,gpu-torch) -c requirements/gpu.lock
	$(call compile,gpu-dev,gpu-torch) -c requirements/gpu-torch.lock -c requirements/dev.lock --group pyproject.toml:dev
	npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund

.PHONY: collector
collector: $(COLLECTOR)  ## Build the OpenTelemetry Collector of deploy/observability (needs Go; minutes)

.PHONY: clean
clean:  ## Remove everything that make made, downloads included
	rm -rf .venv .venv-gpu .tools .cache node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call compile,LOCK,IN): one lock for every platform and for Python 3.11 and 3.12, without the address of the registry that
# answered. Each further lock is constrained by the smaller ones, so that what two of them have in common has one version.
compile = $(UV) pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --generate-hashes --no-header \
	--no-annotate --no-emit-index-url --no-emit-find-links --no-emit-package keyglance --no-emit-package keyglance-server \
	$(if $(UPGRADE),--upgrade) requirements/$(2).in -c requirements/constraints.in -o requirements/$(1).lock

$(BIN)/python:
	@for python in $(PYTHON) python3.12 python3.11 python3 python; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then \
	    echo "Making $(VENV) with $$($$python --version)"; exec $$python -m venv $(VENV); fi; done; \
	echo "error: no Python 3.11 or 3.12 found; install one, or name it: make PYTHON=/path/to/python3.12 …" >&2; exit 1

$(VENV)/.server: requirements/$(SERVER_LOCK).lock $(PACKAGES) | $(BIN)/python
	@echo "Installing what the server needs into $(VENV) (once, a minute or two)"
	@scripts/install.sh $(DEVICE) $(VENV) dependencies editable
	@touch $@

$(VENV)/.dev: requirements/$(DEV_LOCK).lock $(VENV)/.server
	@echo "Installing what development needs into $(VENV) (once)"
	@scripts/install.sh $(DEV_LOCK) $(VENV) dependencies
	@touch $@

$(MODELS)/.installed: $(wildcard models/zoo/*/model.toml) | $(VENV)/.server
	@$(BIN)/python -m models.install
	@touch $@

$(CLIPS)/.fetched: scripts/fetch_clips.py | $(VENV)/.server
	@$(BIN)/python scripts/fetch_clips.py $(CLIPS) >/dev/null
	@touch $@

$(GPU_CLIPS)/.made: loadtest/gpu_clips.py | $(VENV)/.dev $(MODELS)/.installed
	@echo "Encoding the clips of the GPU benchmark into $(GPU_CLIPS) (once, minutes)"
	@mkdir -p $(GPU_CLIPS)
	@$(BIN)/python -m loadtest.gpu_clips $(GPU_CLIPS)
	@touch $@

$(BASELINE)/.installed: requirements/baseline.lock $(PACKAGES) | $(BIN)/python
	@echo "Installing the model server of the baselines into $(BASELINE) (once)"
	@$(BIN)/python -m venv $(BASELINE)
	@$(BASELINE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/baseline.lock
	@$(BASELINE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e clients/python -e .
	@touch $@

node_modules/.installed: package.json package-lock.json
	npm ci --no-audit --no-fund
	@touch $@

$(GHZ):
	GOBIN=$(CURDIR)/.tools/bin go install github.com/bojand/ghz/cmd/ghz@$(GHZ_VERSION)

$(COLLECTOR): deploy/observability/collector-build.yaml
	GOBIN=$(CURDIR)/.tools/bin go install go.opentelemetry.io/collector/cmd/builder@$(COLLECTOR_VERSION)
	cd deploy/observability && $(CURDIR)/.tools/bin/builder --config collector-build.yaml

$(UV): | $(BIN)/python
	$(BIN)/python -m venv .tools/uv
	.tools/uv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
