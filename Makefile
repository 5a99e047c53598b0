# `make demo` and `make test` set up everything they need; see CONTRIBUTING.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt
SETUP := Makefile pyproject.toml constraints.txt

# $(call part,NAME,COMMAND) runs a command and says how long it took.
define part
	@echo "== $(1)"; began=$$(date +%s); $(2) || exit 1; \
	awk -v s=$$(( $$(date +%s) - began )) 'BEGIN { printf "== $(1): %.1f minutes\n", s / 60 }'
endef

OLDEST := .venv-oldest-ray

.PHONY: demo test lint types unit oldest-ray bench clean

demo: $(VENV)/.demo  ## A traced rollout on Ray, into mlflow.db in this folder
	$(BIN)/otel-rollout demo $(ARGS)

test: $(VENV)/.dev lint types unit oldest-ray  ## Everything CI checks

lint: $(VENV)/.dev
	$(call part,lint,$(BIN)/ruff check . && $(BIN)/ruff format --check .)

types: $(VENV)/.dev
	$(call part,types,$(BIN)/mypy)

unit: $(VENV)/.dev
	$(call part,tests,$(BIN)/python -m pytest)

oldest-ray: $(OLDEST)/.ready
	$(call part,propagation on the oldest Ray,$(OLDEST)/bin/python -m pytest tests/propagate)

bench: $(VENV)/.dev  ## What tracing costs, beside what others cost, in one run
	$(BIN)/python -m benchmarks $(ARGS)

$(VENV)/.tools: $(SETUP)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@touch $@

$(VENV)/.demo: $(VENV)/.tools
	$(call part,install,$(INSTALL) --editable '.[demo]')
	@touch $@

$(VENV)/.dev: $(VENV)/.tools
	$(call part,install,$(INSTALL) --editable '.[dev]')
	@touch $@ $(VENV)/.demo

$(OLDEST)/.ready: $(VENV)/.tools constraints-oldest-ray.txt
	$(PYTHON) -m venv $(OLDEST)
	$(call part,install the oldest Ray,$(BIN)/uv pip install --quiet --python $(OLDEST)/bin/python \
		--constraint constraints-oldest-ray.txt --editable '.[oldest-ray]')
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
