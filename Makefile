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

# What cannot be installed beside the rest has an environment of its own: .venv-NAME, by constraints-NAME.txt where
# nothing else is said.
OLDEST_RAY := .venv-oldest-ray
OLDEST_OTEL := .venv-oldest-otel
PHOENIX := .venv-phoenix
WEAVE := .venv-weave
WEAVE_SQLITE := .venv-weave-sqlite
VERL := .venv-verl
VERL_BENCH := .venv-verl-bench
VERL_VERSION ?= 0.7.1
VERL_OLDER := .venv-verl-$(VERL_VERSION)

TESTS := lint types unit collector-tests oldest-ray oldest-otel verl verl-older

.PHONY: demo test soak bench bench-verl collector clean $(TESTS)

demo: $(VENV)/.demo  ## A traced rollout on Ray, into mlflow.db in this folder
	$(BIN)/otel-rollout demo $(ARGS)

test: $(TESTS)  ## Everything CI checks

soak: $(VENV)/.dev  ## Ten rounds of outages and of random kills and faults: hours
	$(call part,soak,for round in 1 2 3 4 5 6 7 8 9 10; do \
		$(BIN)/python -m pytest -q tests/soak || exit 1; done)

bench: $(VENV)/.dev $(WEAVE)/.ready $(WEAVE_SQLITE)/.ready $(VERL)/.ready  ## What tracing costs, beside what others cost, in one run
	$(BIN)/python -m benchmarks $(ARGS)
	$(if $(findstring --only,$(ARGS)),,$(MAKE) bench-verl)

bench-verl: $(VERL_BENCH)/.ready $(WEAVE)/.ready  ## verl's agent loop under its own mlflow and weave backends, and under ours
	$(VERL_BENCH)/bin/python -m benchmarks.verl_agent_loop $(ARGS)

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

verl: $(VERL)/.ready $(WEAVE)/.ready  # both trainers of the real verl
	$(call part,verl,$(VERL)/bin/python -m pytest tests/verl)

verl-older: $(VERL_OLDER)/.ready  ## The same of one trajectory with an older verl: VERL_VERSION=0.8.0
	$(call part,verl $(VERL_VERSION),VERL_USE_EXTERNAL_MODULES=otel_rollout.integrations.verl \
		$(VERL_OLDER)/bin/python -m pytest tests/verl/test_worker.py tests/verl/test_surface.py)

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

# $(call environment,DIRECTORY,WHAT TO INSTALL,CONSTRAINTS)
define environment
$(1)/.ready: $(VENV)/.tools $(or $(3),constraints$(patsubst .venv%,%,$(1)).txt)
	$$(PYTHON) -m venv $(1)
	$$(call part,install $(1),$$(BIN)/uv pip install --quiet --python $(1)/bin/python \
		--constraint $(or $(3),constraints$(patsubst .venv%,%,$(1)).txt) $(2))
	@touch $$@
endef
$(eval $(call environment,$(OLDEST_RAY),--editable '.[oldest-ray]'))
$(eval $(call environment,$(OLDEST_OTEL),--editable '.[oldest-otel]'))
$(eval $(call environment,$(PHOENIX),arize-phoenix))
# Without scikit-learn, which nothing here uses and each of a job's many processes would import for seconds.
$(eval $(call environment,$(VERL),--compile-bytecode --editable '.[verl-tests]' && \
	$$(BIN)/uv pip uninstall --quiet --python $(VERL)/bin/python scikit-learn))
$(eval $(call environment,$(VERL_BENCH),--editable '.[verl-tests]' weave==0.53.0 && \
	$$(BIN)/uv pip uninstall --quiet --python $(VERL_BENCH)/bin/python scikit-learn,constraints-verl.txt))
$(eval $(call environment,$(VERL_OLDER),--editable '.[verl-older-tests]' verl==$(VERL_VERSION) && \
	$$(BIN)/uv pip uninstall --quiet --python $(VERL_OLDER)/bin/python scikit-learn,constraints-verl-older.txt))

# Weave's client and trace server, for tests to talk to: 0.53.0 is the last with the ClickHouse server, 0.52.28 the
# last with the SQLite one.
$(eval $(call environment,$(WEAVE),'weave[trace_server]' chdb clickhouse-connect confluent-kafka fastapi \
	python-multipart redis sqlparse uvicorn))
$(eval $(call environment,$(WEAVE_SQLITE),'weave[trace_server]' fastapi python-multipart uvicorn))

clean:
	rm -rf $(VENV) .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
