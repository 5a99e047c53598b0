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

# What cannot be installed beside the rest has an environment of its own: .venv-NAME, by constraints-NAME.txt.
OLDEST_RAY := .venv-oldest-ray
OLDEST_OTEL := .venv-oldest-otel
PHOENIX := .venv-phoenix
WEAVE := .venv-weave
WEAVE_SQLITE := .venv-weave-sqlite
VERL := .venv-verl

TESTS := lint types unit collector-tests oldest-ray oldest-otel verl

.PHONY: demo test soak bench bench-verl collector clean $(TESTS)

demo: $(VENV)/.demo  ## A traced rollout on Ray, into mlflow.db in this folder
	$(BIN)/otel-rollout demo $(ARGS)

test: $(TESTS)  ## Everything CI checks

soak: $(VENV)/.dev  ## Ten rounds of outages and of random kills and faults: hours
	$(call part,soak,for round in 1 2 3 4 5 6 7 8 9 10; do \
		$(BIN)/python -m pytest -q tests/soak || exit 1; done)

bench: $(VENV)/.dev $(WEAVE)/.ready $(WEAVE_SQLITE)/.ready  ## What tracing costs, beside what others cost, in one run
	$(BIN)/python -m benchmarks $(ARGS)

bench-verl: $(VERL)/.ready  ## verl's agent loop under its own mlflow backend, and under ours
	$(VERL)/bin/python -m benchmarks.verl_agent_loop $(ARGS)

collector: $(VENV)/.tools  ## An OpenTelemetry Collector for collector-config/, in build/
	$(call part,the Collector,$(BIN)/python collector-config/get_collector.py)

lint: $(VENV)/.dev
	$(call part,lint,$(BIN)/ruff check . && $(BIN)/ruff format --check .)

types: $(VENV)/.dev
	$(call part,types,$(BIN)/mypy)

unit: $(VENV)/.dev $(WEAVE)/.ready
	$(call part,tests,$(BIN)/python -m pytest --ignore tests/collector --ignore tests/soak)

collector-tests: $(VENV)/.dev $(PHOENIX)/.ready $(WEAVE)/.ready collector
	$(call part,a Collector that reads the spool,$(BIN)/python -m tests.collector.tailing)
	$(call part,tests with the Collector,$(BIN)/python -m pytest tests/collector)

oldest-ray: $(OLDEST_RAY)/.ready
	$(call part,propagation on the oldest Ray,$(OLDEST_RAY)/bin/python -m pytest tests/propagate)

oldest-otel: $(OLDEST_OTEL)/.ready  # values need Ray and others, and have nothing to do with OpenTelemetry
	$(call part,recording on the oldest OpenTelemetry,$(OLDEST_OTEL)/bin/python -m pytest \
		--ignore tests/capture/test_values.py tests/capture tests/record tests/test_configuration.py tests/test_sdk_variables.py)

verl: $(VERL)/.ready  # both trainers of the real verl
	$(call part,verl,$(VERL)/bin/python -m pytest tests/verl)

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

# $(call environment,DIRECTORY,WHAT TO INSTALL)
define environment
$(1)/.ready: $(VENV)/.tools constraints$(patsubst .venv%,%,$(1)).txt
	$$(PYTHON) -m venv $(1)
	$$(call part,install $(1),$$(BIN)/uv pip install --quiet --python $(1)/bin/python \
		--constraint constraints$(patsubst .venv%,%,$(1)).txt $(2))
	@touch $$@
endef
$(eval $(call environment,$(OLDEST_RAY),--editable '.[oldest-ray]'))
$(eval $(call environment,$(OLDEST_OTEL),--editable '.[oldest-otel]'))
$(eval $(call environment,$(PHOENIX),arize-phoenix))
# Without scikit-learn, which nothing here uses and each of a job's many processes would import for seconds.
$(eval $(call environment,$(VERL),--compile-bytecode --editable '.[verl-tests]' && \
	$$(BIN)/uv pip uninstall --quiet --python $(VERL)/bin/python scikit-learn))

# Weave's client and trace server, for tests to talk to: 0.53.0 is the last with the ClickHouse server, 0.52.28 the
# last with the SQLite one.
$(eval $(call environment,$(WEAVE),'weave[trace_server]' chdb clickhouse-connect confluent-kafka fastapi \
	python-multipart redis sqlparse uvicorn))
$(eval $(call environment,$(WEAVE_SQLITE),'weave[trace_server]' fastapi python-multipart uvicorn))

clean:
	rm -rf $(VENV) .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
