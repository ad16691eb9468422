.DEFAULT_GOAL := help
.PHONY: help run demo test test-slow test-browser tools screenshots check format lock secrets image clean dashboards paper peers

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A half-made environment is worse than none: the stamp is written last, and a stale one is made anew.
$(VENV)/run.stamp: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12")'
	@echo "Setting up $(VENV) (about a minute, once)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) --require-hashes -r requirements.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements-dev.txt
	@echo "Adding the tools of tests and checks"
	@$(PIP) --require-hashes -r requirements-dev.txt
	@touch $@

$(VENV)/browser.stamp: $(VENV)/dev.stamp requirements-browser.txt
	@echo "Adding the driver of a browser"
	@$(PIP) --require-hashes -r requirements-browser.txt
	@touch $@

# QuaPy needs packages that the service does not, and must not decide the versions of its own.
.venv-peers/peers.stamp: bench/peers/requirements.txt
	@echo "Setting up .venv-peers for QuaPy (half a minute, once)"
	@$(PYTHON) -m venv --clear .venv-peers
	@.venv-peers/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r $<
	@touch $@

run: $(VENV)/run.stamp ## Serve on http://127.0.0.1:8000 with an embedded PostgreSQL
	@exec $(BIN)/shiftwatch serve

demo: $(VENV)/run.stamp ## Show it with real predictions: two models, a shift, within a minute
	@exec $(BIN)/shiftwatch demo

# Several at once, each with a PostgreSQL of its own. More than four would be in the way of those tests
# that see how soon something happens.
AT_ONCE := --numprocesses auto --maxprocesses 4 --dist worksteal

test: $(VENV)/dev.stamp ## All tests but the slow calibration ones and those in a browser
	@$(BIN)/python -m pytest $(AT_ONCE) -m "not slow and not browser"

test-slow: $(VENV)/dev.stamp ## Statistical calibration: minutes
	@$(BIN)/python -m pytest $(AT_ONCE) -m slow

test-browser: $(VENV)/browser.stamp ## The page in a real Chromium; skipped where there is none
	@sh tests/browser/get-chromium
	@$(BIN)/python -m pytest -m browser tests/browser

screenshots: $(VENV)/browser.stamp ## Take docs/screenshots of a running demo
	@sh tests/browser/get-chromium
	@$(BIN)/python -m docs.screenshots.make

paper: $(VENV)/dev.stamp ## Repeat the paper's experiments: figures and numbers into bench/paper
	@$(BIN)/python -m bench.paper

peers: $(VENV)/dev.stamp .venv-peers/peers.stamp ## Compare our estimates with QuaPy's on the same draws
	@$(BIN)/python -m bench.peers

tools: ## On Debian: bring Prometheus and Alertmanager, for tests that are skipped without
	@sh tests/get-tools

check: $(VENV)/dev.stamp ## Format, lint, types and layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/dev.stamp ## Mend what can be mended by a tool
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

dashboards: $(VENV)/dev.stamp ## Write deploy/grafana/dashboards from the modules beside it
	@$(BIN)/python -m deploy.grafana.build

lock: $(VENV)/dev.stamp ## Compile pyproject.toml into the pinned, hashed requirements
	@$(PIP) uv
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header pyproject.toml --all-extras --group build -o requirements.txt
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header pyproject.toml --all-extras --group build --group dev -c requirements.txt -o requirements-dev.txt
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group browser -c requirements-dev.txt -o requirements-browser.txt
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group peers -c requirements-dev.txt -o bench/peers/requirements.txt

secrets: ## Random secrets for docker-compose.yml; those that are there stay
	@sh deploy/compose/make-secrets

image: ## Build the container image shiftwatch:local
	docker build --tag shiftwatch:local \
	  --build-arg VERSION=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' app/__init__.py) \
	  --build-arg REVISION=$$(git rev-parse HEAD) .

clean: ## Remove the environment and caches; the data directory stays
	rm -rf $(VENV) .venv-peers .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
