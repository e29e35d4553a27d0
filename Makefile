# Everything runs from .venv, which `make setup` fills. `make help` lists the targets.

PYTHON ?= python3
VLLM ?= auto
MODEL ?= Qwen/Qwen2.5-VL-3B-Instruct
GPU ?= L4
# The newest Python of this machine: on PATH, or installed by pyenv.
NEWEST ?= $(shell for python in python3.15 python3.14 python3.13 python3.12 \
	$$(ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.1[2-9]*/bin/python 2>/dev/null | sort -rV); do \
	$$python -c '' 2>/dev/null && { echo $$python; break; }; done)
# What test-newest runs; CI leaves out what no library's release changes.
NEWEST_TESTS ?= tests
# Which of the tests that face vLLM `make compat` runs: all, or `--suite ROW` for some.
SUITES ?= --tests
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-newest test-core nightly test-slow test-long models releases test-all bench conformance compat lint format docs dist clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' \
		| awk -F '\t' '{ printf "  make %-11s %s\n", $$1, $$2 }'

setup: ## Install mmcalib and vLLM into .venv (VLLM=cpu|cuda|none, PYTHON=python3.12)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "setup: failed: $(PYTHON) is not Python 3.11 or newer; name one: make setup PYTHON=python3.12" >&2; \
		exit 1; }
	@$(PYTHON) scripts/setup.py --vllm $(if $(filter 0.%,$(VLLM)),auto,$(VLLM))

demo: setup ## Fetch the sample corpus and calibrate a model for it (MODEL=..., GPU=...); results in out/
	$(BIN)/python datasets/materialise.py sample
	@start=$$(date +%s); \
	set -x; \
	$(BIN)/mmcalib run --model $(MODEL) --data sample/image --data sample/video \
		--requests sample/requests.jsonl --gpu $(GPU) --out out --force; \
	{ status=$$?; set +x; } 2>/dev/null; \
	echo "demo: the job took $$(($$(date +%s) - start)) s"; \
	if [ -s out/report.html ]; then \
		if [ -n "$$DISPLAY$$WAYLAND_DISPLAY" ]; then xdg-open out/report.html; \
		elif [ "$$(uname)" = Darwin ]; then open out/report.html; \
		else echo "demo: open out/report.html in a browser"; fi; \
	fi; \
	exit $$status

test: setup ## Run the tests, those with vLLM's processors included: a quarter of an hour
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not long and not models"

test-newest: ## Lint, and run the tests without vLLM, on the newest Python here with the newest of all packages
	@test -n "$(NEWEST)" || { echo "test-newest: no Python newer than 3.11 found; name one: make test-newest NEWEST=python3.13" >&2; exit 1; }
	$(NEWEST) -m venv --clear .venv-newest
	.venv-newest/bin/pip install -qq --editable .[dev]
	.venv-newest/bin/ruff check .
	.venv-newest/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not long and not models" $(NEWEST_TESTS)

test-slow: setup ## Run the tests that take more than ten seconds each: engine starts, rehearsals, servers
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "slow and not long and not models"

# The main job, mistakes in it, a real server and an installed wheel.
CORE := tests/e2e/test_run.py tests/e2e/test_serve.py tests/e2e/test_mistakes.py tests/packaging

test-core: setup ## Run the slow tests that CI runs, in five to twenty minutes
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "slow and not long and not models" $(CORE)

nightly: lint test test-newest test-slow test-long models compat releases demo ## Run all that takes hours: every test, model and release

releases: setup ## Rehearse a model with each release of vLLM since 0.11; needs the network and 10 GB
	$(BIN)/python benchmarks/releases.py --environments .venv-releases

test-long: setup ## Run the tests that take minutes: every command of the docs, among others
	$(BIN)/pytest -m "long and not models"

models: setup ## Try every bundled model: its items, dummies, knobs, limits, startup, and whole runs on three GPUs
	$(BIN)/pytest -n 2 --dist loadgroup -m "not long" tests/bundled
	$(BIN)/python datasets/materialise.py sample
	$(BIN)/python benchmarks/every_model.py --out reports/every-model.md

test-all: lint test test-newest test-slow test-long models demo ## Run all that a release must pass: lint, all tests, demo

bench: setup ## Measure the speed of rehearsals and scans, what a large corpus costs, and accuracy
	$(BIN)/python benchmarks/rehearsal_speed.py --out reports/rehearsal-speed.md
	$(BIN)/python benchmarks/scale.py --gpu L4 --out reports/scale.md
	$(BIN)/python benchmarks/memory_accuracy.py
	$(BIN)/python datasets/materialise.py sample
	$(BIN)/python benchmarks/scan.py --out reports/scan.md

conformance: setup ## Ask check and vLLM's real server the same 3,000 generated requests (an hour)
	$(BIN)/python benchmarks/conformance.py --out reports/conformance.md

compat: setup ## Try every command and what faces vLLM with each release of it (VLLM=0.33.0 for one)
	$(BIN)/python datasets/materialise.py sample
	$(BIN)/python benchmarks/compat.py --media sample $(SUITES) $(addprefix --vllm ,$(filter 0.%,$(VLLM)))

lint: setup ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

docs: setup ## Check README and docs: links, generated parts, commands
	$(BIN)/pytest tests/docs

dist: setup ## Make sdist and wheel in dist/, their version from git's tags
	rm -rf dist
	$(BIN)/python -m build

clean: ## Remove what can be made again (out/, sample/, caches); .venv stays
	rm -rf out sample build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
