# `make demo` and `make test` need nothing but this checkout: they make .venv and install what is missing.
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test check docs bench lowest soak
# Another tree's modules or interpreter must not leak into this one's.
unexport PYTHONPATH PYTHONHOME
# Tests are compiled once, not by each process that runs them.
unexport PYTHONDONTWRITEBYTECODE

PY := .venv/bin/python
PYTEST := $(PY) -m pytest --dist loadgroup

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' Makefile

setup:
	@scripts/setup-venv http

setup-dev:
	@scripts/setup-venv http postgres redis dev docs

demo: setup ## deliver 329 real webhooks to an endpoint that misbehaves, and prove that none is lost
	@.venv/bin/redrive demo $(ARGS)

test: setup-dev ## run every test and check that gates a commit (ARGS="-k name" for some of them)
	@scripts/setup-servers
	@$(PYTEST) -n 3 --max-worker-restart 0 $(ARGS) # on two cores: tests wait for a part of their time

check: setup-dev ## lint, format, types, the import tree and the site
	@scripts/check

docs: ## build the site into build/site
	@scripts/setup-venv postgres redis web docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs --quiet build
	@echo "build/site/index.html"

bench: setup-dev ## measure speed, lateness, latency, memory and start-up (ARGS="--help" for the choices)
	@$(PY) -m benchmarks $(ARGS)

lowest: ## run the unit and contract tests with the lowest versions that pyproject.toml allows
	@scripts/setup-servers
	@scripts/setup-lowest
	@.venv-lowest/bin/python -m pytest --dist loadgroup -n 2 -m "not soak" tests/contract tests/stores tests/unit $(ARGS)

soak: setup-dev ## the whole of every sweep, for as long as it takes (TEST_SEED=1 repeats a run)
	@scripts/setup-servers
	@scripts/setup-localstack
	@TEST_SOAK=1 $(PYTEST) -n 2 -m "slow or soak" --timeout 3600 --hypothesis-profile soak $(ARGS)
