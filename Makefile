# Three commands: `make demo`, `make test`, `make check`. Each makes .venv when it is missing and adds what it needs.

PYTHON ?= python3
FUZZ_SECONDS ?= 300
BIN := .venv/bin
FOLDERS := aggregation cli client_sdk compute privacy protocol server simulation src
KILLS := $(wildcard tests/*/test_kill*.py tests/*/test_*_kill.py)
API := tests/server/test_wrong_fields.py
NODE := tests/client_sdk/test_node_client.py tests/privacy/secagg/test_webcrypto.py
RAY := tests/simulation/test_ray.py tests/simulation/test_ray_client.py
RAY_HOST := tests/simulation/test_hosts.py::test_a_ray_cluster_makes_the_same_version_too
LONG := tests/client_sdk/test_edge.py tests/server/test_edge.py tests/client_sdk/test_mnist.py tests/simulation/test_published_models.py
ATTACKS := $(wildcard tests/client_sdk/test_lies*.py) tests/privacy/audit/test_small_noise.py
# Four workers for two cores: many tests wait for processes that they start. No test is written as a plugin of
# schemathesis, whose import costs every worker a second.
PYTEST := $(BIN)/python -m pytest -q -n 4 --dist worksteal -p no:schemathesis

# What one process has compiled the others read, and the next run: four workers that rewrite the assertions of all tests
# each for itself take forty seconds of processor time more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-api test-attacks test-kill test-ray check check-style check-types check-house test-providers test-flower test-tables test-node test-wheel test-long fuzz clean

help:
	@echo "make demo    train on handwritten digits: a coordinator and ten clients over loopback HTTP"
	@echo "make test    the tests"
	@echo "make test-api  every field of the REST interface wrong once, as everybody who may ask"
	@echo "make test-attacks  a coordinator that lies to devices, and noise that is not as large as promised"
	@echo "make test-long  trees of edge aggregators, a network on MNIST, and published models"
	@echo "make test-kill  processes killed at every point of their work; a few minutes"
	@echo "make check   style, types, import rules, packaging, documentation snippets"
	@echo "make test-providers  the execution providers that this machine can have, each in an environment of its own"
	@echo "make test-ray   simulations on Ray clusters"
	@echo "make test-flower  clients written for Flower, beside Flower itself in an environment of its own"
	@echo "make test-tables  tables of Arrow and data sets of Hugging Face, in an environment of its own"
	@echo "make test-node  a client in Node.js beside clients in Python; needs Node.js 20 or later, and npm"
	@echo "make test-wheel  the wheel alone in an empty environment, and the tests of the SDK there"
	@echo "make fuzz    the readers of foreign files, FUZZ_SECONDS=300 each, in an environment of its own"
	@echo "make clean   remove .venv, .coterie and the caches"

demo: .venv/installed-demo
	@$(BIN)/coterie demo $(ARGS)

test: .venv/installed-test
	@$(PYTEST) --ignore=tests/house $(addprefix --ignore=,$(KILLS) $(API) $(ATTACKS) $(NODE) $(RAY) $(LONG)) --deselect=$(RAY_HOST)

test-api: .venv/installed-test
	@$(PYTEST) $(API)

test-attacks: .venv/installed-test
	@$(PYTEST) $(ATTACKS)

test-kill: .venv/installed-test
	@$(PYTEST) $(KILLS)

test-long: .venv/installed-test
	@$(PYTEST) $(LONG)

test-ray: .venv/installed-test
	@$(PYTEST) $(RAY) $(RAY_HOST)

# In parts, so that `make -j2 check` works on two at a time: the check of types uses one core only.
check: check-style check-types check-house

check-style: .venv/installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports

check-types: .venv/installed-dev
	@$(BIN)/pyright --pythonpath $(BIN)/python

check-house: .venv/installed-dev
	@$(PYTEST) tests/house

test-providers: .venv/installed-test
	@$(BIN)/python -m tests.providers $(ARGS)

test-tables: .venv-tables/installed
	@.venv-tables/bin/python -m pytest -q --noconftest -k a_real tests/compute/data/test_sources.py

test-flower: .venv-flower/installed
	@.venv-flower/bin/python -m pytest -q --noconftest tests/client_sdk/test_flower_app.py

# ONNX Runtime's package holds its library; what its install script would fetch besides is for GPUs.
tests/node/node_modules/installed: tests/node/package.json
	@cd tests/node && npm install --ignore-scripts --no-audit --no-fund --no-package-lock --silent
	@touch $@

test-wheel: .venv/installed-dev
	@.ci/wheel

test-node: .venv/installed-test tests/node/node_modules/installed
	@COTERIE_REQUIRE_NODE=1 $(PYTEST) $(NODE)

fuzz: .venv-fuzz/installed
	@for target in tests/fuzz/fuzz_*.py; do \
		echo "$$target, $(FUZZ_SECONDS) seconds"; \
		.venv-fuzz/bin/python $$target -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

clean:
	rm -rf .venv .venv-fuzz .venv-flower .venv-tables tests/node/node_modules .coterie .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "coterie needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another one:" >&2; \
		echo "  make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
		exit 1; \
	}
	@echo "making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv

# One stamp per set of extras; a stamp older than pyproject.toml is installed again. Compiled ahead, because the demo's
# processes would all compile the same files at once.
.venv/installed-%: pyproject.toml | $(BIN)/python
	@echo "installing coterie[$*] into .venv (the first time takes about a minute)"
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --editable ".[$*]"
	@$(BIN)/python -m compileall -q $(FOLDERS)
	@touch $@

.venv-flower/installed: pyproject.toml
	@$(PYTHON) -m venv .venv-flower
	@.venv-flower/bin/python -m pip install --quiet --quiet --disable-pip-version-check --editable . flwr hypothesis pytest pytest-timeout safetensors
	@touch $@

.venv-tables/installed: pyproject.toml
	@$(PYTHON) -m venv .venv-tables
	@.venv-tables/bin/python -m pip install --quiet --quiet --disable-pip-version-check --editable ".[data]" datasets pyarrow pytest pytest-timeout
	@touch $@

.venv-fuzz/installed: pyproject.toml
	@$(PYTHON) -m venv .venv-fuzz
	@.venv-fuzz/bin/python -m pip install --quiet --quiet --disable-pip-version-check --editable ".[fuzz]"
	@touch $@
