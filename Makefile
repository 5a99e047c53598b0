# `make demo` and `make test` set up everything they need; see CONTRIBUTING.md.
PYTHON ?= python3
VENV := .venv
# What is built once for all checkouts: the Collector, programs in Go, Debian's newest Python (tests/dev_cache.py).
export ROLLOUT_DEV_CACHE ?= $(HOME)/.cache/otel-rollout-dev
# Tests start thousands of processes. Each would compile the modules that it imports.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt
SETUP := Makefile pyproject.toml constraints.txt $(wildcard autoload/*.p*)

# $(call part,NAME,COMMAND) runs a command and says how long it took.
define part
	@echo "== $(1)"
	@began=$$(date +%s); $(2) || exit 1; \
	awk -v s=$$(( $$(date +%s) - began )) 'BEGIN { printf "== $(1): %.1f minutes\n", s / 60 }'
endef

# $(call pytest,ENVIRONMENT,NAME,ARGUMENTS) runs a part of the tests. Tests wait more than they work, so four run side
# by side, or three beside another part; those that share a server or Ray are one worker's (tests/side_by_side.py).
pytest = $(1)/bin/python -m tests.run "$(2)" $(3)
SIDE_BY_SIDE := --numprocesses 4 --dist loadscope --no-loadscope-reorder

comma := ,
space := $(subst ,, )

# $(call in_pairs,TARGETS) makes two targets at a time: they wait more than they work.
in_pairs = $(MAKE) --no-print-directory --jobs 2 --output-sync=line $(1)

# What cannot be installed beside the rest has an environment of its own: .venv-NAME, by constraints-NAME.txt where
# nothing else is said.
OLDEST_RAY := .venv-oldest-ray
OLDEST_OTEL := .venv-oldest-otel
PHOENIX := .venv-phoenix
WEAVE := .venv-weave
LOGFIRE := .venv-logfire
VERL := .venv-verl
VERL_BENCH := .venv-verl-bench
VERL_VERSION ?= 0.7.1
VERL_OLDER := .venv-verl-$(VERL_VERSION)
MUTANTS := .venv-mutants
TRL_EXAMPLE := examples/trl
TINY_MODEL := build/tiny-model
VERIFIERS := .venv-verifiers
AGENTS := .venv-agents
NODE_AGENT := examples/agents/node/node_modules/.package-lock.json
FOREIGN := .venv-foreign
VLLM := .venv-vllm
LITELLM := .venv-litellm
NEWEST_PYTHON := 3.13
PYTHON_OF_DEBIAN = $(ROLLOUT_DEV_CACHE)/debian-trixie-python-$(NEWEST_PYTHON)/usr/bin/python$(NEWEST_PYTHON)
NEWEST := .venv-$(NEWEST_PYTHON)
MLFLOW_MINORS ?= 3.14 3.15 3.16 3.17
DIST := .venv-dist
DOCS := .venv-docs

# What `make test-all` adds. Two parts run at a time, then the longest alone: it has three workers, and takes twice as
# long beside others. Nothing is built or installed beside them: a compiler keeps Ray's nodes from starting in the 30 s
# that Ray gives them.
OTHER_TESTS := extended verl newest-python vllm trl docs verl-older verifiers agents black-box postgresql foreign \
	oldest-ray object-store oldest-otel package
BUILT_FOR_TESTS = $(VENV)/.dev $(WEAVE)/.ready
BUILT_FOR_OTHER_TESTS = $(BUILT_FOR_TESTS) tailing-collector go-tools browser $(NODE_AGENT) $(PHOENIX)/.ready \
	$(DOCS)/.ready $(VERL)/.ready $(VLLM)/.ready $(VERL_OLDER)/.ready $(AGENTS)/.ready $(FOREIGN)/.ready \
	$(LITELLM)/.ready $(TINY_MODEL)/config.json $(VERIFIERS)/.ready $(OLDEST_RAY)/.ready $(OLDEST_OTEL)/.ready \
	$(NEWEST)/.ready postgresql-server s3-server dist
# Tests of the main environment are all others; those with an environment or a server of their own are parts.
PARTS := $(addprefix tests/,package versions agents black_box vllm trl verifiers verl foreign delta/test_object_store.py \
	propagation/test_ray_environments.py)
MAIN := tests $(addprefix --ignore ,$(PARTS))

.PHONY: help demo demo-train test test-all versions mlflow-minors postgresql-server built-for-tests built-for-other-tests \
	browser s3-server go-tools soak mutants bench bench-verl collector tailing-collector dist upgrade \
	parts clean lint types promises $(OTHER_TESTS)

help:  ## This list
	@sed -En 's/^([a-z-]+):.*  ## (.*)/  \1 | \2/p' $(MAKEFILE_LIST) | column -t -s '|'

demo: $(VENV)/.demo  ## A traced rollout on Ray, into mlflow.db in this folder
	$(BIN)/otel-rollout demo $(ARGS)

# The variables are all that traces the script. One thread: the model is too small for more.
demo-train: $(VENV)/.trl $(TINY_MODEL)/config.json  ## GRPO by TRL with a tool, traced, into mlflow.db in this folder
	OTEL_TRACES_EXPORTER=mlflow,delta OTEL_ROLLOUT_PROJECT=trl-demo OTEL_ROLLOUT_DELTA_URI="$(CURDIR)/rollouts" \
		MLFLOW_TRACKING_URI="sqlite:///$(CURDIR)/mlflow.db" MLFLOW_EXPERIMENT_NAME=trl-demo \
		OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore \
		$(BIN)/python $(TRL_EXAMPLE)/grpo_calculator.py --model $(TINY_MODEL) --output build/grpo-calculator --report-to mlflow
	@echo; echo "== a trajectory with a tool call"
	@$(BIN)/otel-rollout show $$($(BIN)/otel-rollout list --run latest --where 'tool_calls > 0' --sort -tool_errors,path \
		--limit 1 --format csv | cut -d , -f 1 | tail -n 1)
	@echo; echo "== all steps"
	@$(BIN)/otel-rollout steps --run latest
	@echo; echo "Look further:"
	@echo "  . $(BIN)/activate"
	@echo "  otel-rollout group 1/1                                # siblings as a tree, and why one was better"
	@echo "  otel-rollout view                                     # all of it in a browser"
	@echo "  mlflow server --backend-store-uri sqlite:///mlflow.db # the traces, in experiment trl-demo"

$(TINY_MODEL)/config.json: $(TRL_EXAMPLE)/tiny_model.py $(TRL_EXAMPLE)/grpo_calculator.py | $(VENV)/.trl
	$(call part,a tiny model that calls a tool,OMP_NUM_THREADS=1 $(BIN)/python $(TRL_EXAMPLE)/tiny_model.py $(TINY_MODEL))

test:  ## What the README promises: with real Ray, MLflow and Weave
	@echo "== make test installs two environments below this folder (about 5 GB: MLflow, Ray, torch, and Weave's server)."
	@echo "== It checks style and types, then it tests. On two cores this takes up to 10 minutes the first time, and up to 8"
	@echo "== after that. It needs no root, Go or npm. The rest is make test-all."
	$(call part,make test,$(MAKE) --no-print-directory built-for-tests && $(call in_pairs,lint types) && \
		$(MAKE) --no-print-directory promises)

test-all:  ## The rest: sweeps and attacks, the Collector, a browser, verl, TRL, vLLM, agents, S3, older and newer versions
	@echo "== make test-all runs what make test leaves. It needs root, Go, npm and Debian's apt: some tests mount file"
	@echo "== systems and act as other users. It takes about an hour on two cores."
	$(call part,make test-all,$(call in_pairs,built-for-other-tests) && $(call in_pairs,$(filter-out extended,$(OTHER_TESTS))) && \
		$(MAKE) --no-print-directory extended)

built-for-tests: $(BUILT_FOR_TESTS)

built-for-other-tests: $(BUILT_FOR_OTHER_TESTS)

soak: $(VENV)/.dev $(WEAVE)/.ready  ## Ten rounds of outages, of random kills and faults, and of fuzzing: two hours
	$(call part,soak,$(BIN)/python -m tests.soak $(ARGS))

mutants: $(BUILT_FOR_TESTS) $(MUTANTS)/.ready  ## Of a sample of changes to the product, what make test notices, and the rest
	$(call part,mutants,$(MUTANTS)/bin/python -W error::SyntaxWarning -m tests.mutants $(SIDE_BY_SIDE) $(MAIN) $(ARGS))

bench: $(VENV)/.dev $(WEAVE)/.ready $(VERL_BENCH)/.ready $(LOGFIRE)/.ready collector  ## What tracing costs, beside what others cost, in one run
	$(BIN)/python -m benchmarks $(ARGS)

bench-verl: $(VENV)/.dev $(VERL_BENCH)/.ready $(WEAVE)/.ready  ## Of it, verl's agent loop under its own backends, and under ours
	$(BIN)/python -m benchmarks --only verl_agent_loop $(ARGS)

# The time of the last commit: the same source gives the same bytes.
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: $(DIST)/.ready  ## The source distribution and the wheel, checked, in dist/
	$(DIST)/bin/cffconvert --validate
	rm -rf dist
	$(DIST)/bin/python -m build --no-isolation --outdir dist . > /dev/null
	$(DIST)/bin/twine check --strict dist/*
	$(DIST)/bin/check-wheel-contents dist/*.whl

# What a nightly run tests. The other packages move only where the named ones need it.
EXTRA ?= dev
upgrade: $(VENV)/.tools  ## UPGRADE='mlflow==3.15.* ray' newer than the constraints of EXTRA=dev, verl-tests, foreign-tests
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --extra $(EXTRA) \
		$(foreach package,$(UPGRADE),--upgrade-package '$(package)') \
		--output-file constraints$(addprefix -,$(filter-out dev,$(EXTRA:-tests=))).txt pyproject.toml

parts:  # of test-all, as JSON, for the workflows
	@printf '["%s"]\n' '$(subst $(space),"$(comma)",$(strip $(OTHER_TESTS)))'

docs: $(DOCS)/.ready  ## The documentation site, in build/site; a warning or a dead link is an error
	$(call part,the documentation site,$(DOCS)/bin/python -m website)

collector: $(VENV)/.tools  ## An OpenTelemetry Collector for collector-config/, in build/
	$(call part,the Collector,$(BIN)/python collector-config/get_collector.py)

tailing-collector: $(VENV)/.dev collector
	$(call part,a Collector that reads the spool,$(BIN)/python -m tests.collector.tailing)

lint: $(VENV)/.dev
	$(call part,lint,$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports)

types: $(VENV)/.dev
	$(call part,types,$(BIN)/mypy)

promises: $(VENV)/.dev $(WEAVE)/.ready  # each room's main promises; ARGS are pytest's
	@$(call pytest,$(VENV),tests,$(SIDE_BY_SIDE) --tier promises $(MAIN) $(ARGS))

extended: $(BUILT_FOR_TESTS) $(NODE_AGENT) $(PHOENIX)/.ready tailing-collector go-tools browser  # the rest of these tests
	@$(call pytest,$(VENV),extended tests,$(SIDE_BY_SIDE) --numprocesses 3 --tier extended $(MAIN) $(ARGS))

oldest-ray: $(OLDEST_RAY)/.ready
	@$(call pytest,$(OLDEST_RAY),propagation on the oldest Ray,tests/propagation)

oldest-otel: $(OLDEST_OTEL)/.ready  # what is left out needs other libraries, and has nothing to do with OpenTelemetry
	@$(call pytest,$(OLDEST_OTEL),recording on the oldest OpenTelemetry,--tier promises \
		--ignore tests/recording/test_redaction.py --ignore tests/recording/test_shared_backend.py \
		--deselect tests/test_configuration.py::test_a_misspelt_option_of_an_exporter_is_answered_with_the_one_that_was_meant \
		tests/capture tests/recording tests/otlp/test_writer.py tests/spool/test_journal.py \
		tests/spool/test_root_table.py tests/test_configuration.py tests/test_sdk_variables.py)

verl: $(VERL)/.ready $(WEAVE)/.ready  # both trainers of the real verl
	@$(call pytest,$(VERL),verl,tests/verl)

verl-older: $(VERL_OLDER)/.ready  ## The same of one trajectory with an older verl: VERL_VERSION=0.8.0
	@VERL_USE_EXTERNAL_MODULES=otel_rollout.integrations.verl $(call pytest,$(VERL_OLDER),verl $(VERL_VERSION),\
		tests/verl/test_worker.py tests/verl/test_rollout_trace.py)

trl: $(VENV)/.dev  # real training by TRL, also beside an untraced one
	@$(call pytest,$(VENV),TRL,tests/trl)

verifiers: $(VERIFIERS)/.ready  # real rollouts and evaluations of verifiers
	@$(call pytest,$(VERIFIERS),verifiers,tests/verifiers)

vllm: $(VLLM)/.ready  # real vLLM on the CPU: its server, and in our processes
	@$(call pytest,$(VLLM),vLLM,tests/vllm)

agents: $(AGENTS)/.ready  # agent libraries with their instrumentors, here and on Ray
	@$(call pytest,$(AGENTS),agent libraries,tests/agents)

black-box: $(VENV)/.dev $(LITELLM)/.ready $(VLLM)/.ready $(TINY_MODEL)/config.json  # agents behind LiteLLM's proxy
	@$(call pytest,$(VENV),black-box agents,tests/black_box)

object-store: s3-server  # the rollout table on a server that speaks S3
	@$(call pytest,$(VENV),the table on S3,tests/delta/test_object_store.py)

browser:  # Debian's Chromium and the driver that tests use
	$(call part,a browser,command -v chromedriver > /dev/null || { apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium chromium-driver; } > /dev/null)

# OpenTelemetry's SDK for JavaScript, for an agent in Node: 19 packages of 35 MB.
$(NODE_AGENT): examples/agents/node/package-lock.json
	$(call part,an agent in JavaScript,command -v npm > /dev/null || { apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends nodejs npm; } > /dev/null; \
		npm ci --prefix $(dir $<) --no-audit --no-fund --loglevel error && touch $@)

s3-server: $(VENV)/.dev
	$(call part,a server that speaks S3,$(BIN)/python -m tests.go_tools versitygw)

go-tools: $(VENV)/.dev
	$(call part,what renders the manifests and checks the workflows,$(BIN)/python -m tests.go_tools kustomize actionlint)

package: $(VENV)/.dev dist  # what dist made, as its users install it
	@$(call pytest,$(VENV),the package,tests/package)

# Not in test-all: a shallow clone does not have the older commit.
versions: $(VENV)/.dev  ## An older version, from this repository's history, on a cluster and in a spool
	@$(call pytest,$(VENV),an older version,tests/versions)

postgresql-server:  # Debian's PostgreSQL; tests start a server of their own
	$(call part,PostgreSQL,ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 || { apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends postgresql; } > /dev/null)

# The tests of MLflow's exporter that read back what it wrote.
MLFLOW_TESTS := $(addprefix tests/mlflow/test_mlflow_,$(addsuffix .py,round_trip scores score_batches many_scores \
	values identities runs running))
postgresql: $(VENV)/.dev $(WEAVE)/.ready postgresql-server  # MLflow with its store in PostgreSQL: its server, and directly
	@TEST_MLFLOW_STORE=postgresql $(call pytest,$(VENV),MLflow on PostgreSQL,$(MLFLOW_TESTS) \
		tests/mlflow/test_mlflow_races.py tests/conformance/test_round_trip.py tests/conformance/test_generated.py -k mlflow)

# Not in test-all: the newest release of each minor version changes from night to night.
mlflow-minors: $(addprefix mlflow-,$(MLFLOW_MINORS))  ## A server and a database of each minor version of MLflow that is supported

mlflow-%: $(VENV)/.tools
	$(PYTHON) -m venv $(VENV)-mlflow-$*
	$(BIN)/uv pip install --quiet --python $(VENV)-mlflow-$*/bin/python --editable '.[mlflow,otlp,testing]' \
		'mlflow[auth]~=$*.0' trustme
	@$(call pytest,$(VENV)-mlflow-$*,MLflow $*,$(MLFLOW_TESTS))

newest-python: $(NEWEST)/.ready  # Debian's newest Python, without what needs torch
	@$(call pytest,$(NEWEST),Python $(NEWEST_PYTHON),$(SIDE_BY_SIDE) --numprocesses 2 --tier promises tests/account \
		tests/base tests/capture tests/cli tests/exporting tests/forwarder tests/launch tests/otlp tests/recording \
		tests/spool tests/test_configuration.py tests/mlflow/test_mlflow_round_trip.py)

foreign: $(FOREIGN)/.ready  # beside Sentry, Datadog, Logfire and weave.init
	@$(call pytest,$(FOREIGN),beside other tracing libraries,tests/foreign)

$(VENV)/.tools: $(SETUP)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@touch $@

$(VENV)/.demo: $(VENV)/.tools
	$(call part,install,$(INSTALL) --editable '.[demo]')
	@touch $@

$(VENV)/.trl: $(VENV)/.tools
	$(call part,install,$(INSTALL) --editable '.[trl]' trl)
	@touch $@

$(VENV)/.dev: $(VENV)/.tools
	$(call part,install,$(INSTALL) --editable '.[dev]')
	@touch $@ $(VENV)/.demo $(VENV)/.trl

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

$(eval $(call environment,$(VLLM),--override overrides-vllm.txt --editable '.[vllm-tests]'))
$(VLLM)/.ready: overrides-vllm.txt

# Weave's client and trace server, for tests to talk to: 0.53.0 is the last with the server.
$(eval $(call environment,$(WEAVE),'weave[trace_server]' chdb clickhouse-connect confluent-kafka fastapi \
	python-multipart redis sqlparse uvicorn))

$(eval $(call environment,$(AGENTS),--editable '.[agents-tests]'))
$(eval $(call environment,$(VERIFIERS),--editable '.[verifiers-tests]'))
$(eval $(call environment,$(FOREIGN),--editable '.[foreign-tests]'))
$(eval $(call environment,$(DIST),build cffconvert check-wheel-contents hatch-fancy-pypi-readme hatchling mypy pyright twine))
$(eval $(call environment,$(DOCS),mkdocstrings-python ruff zensical))

# LiteLLM's proxy, and what it imports. Its extra "proxy" has more, some of it under a licence that is not open.
$(eval $(call environment,$(LITELLM),--editable . litellm apscheduler backoff expression fastapi fastapi-sso mcp \
	opentelemetry-exporter-otlp-proto-http orjson pynacl python-multipart redis soundfile uvicorn uvloop websockets))

$(eval $(call environment,$(MUTANTS),cosmic-ray coverage))

# Of Debian's newer release, unpacked here where the machine has an older one.
$(PYTHON_OF_DEBIAN): | $(VENV)/.tools
	$(call part,Python $(NEWEST_PYTHON),$(BIN)/python -m tests.debian_python $(NEWEST_PYTHON) trixie)
$(NEWEST)/.ready: $(PYTHON_OF_DEBIAN) constraints.txt
	$(BIN)/uv venv --quiet --clear --python $(PYTHON_OF_DEBIAN) $(NEWEST)
	$(call part,install $(NEWEST),$(BIN)/uv pip install --quiet --python $(NEWEST)/bin/python \
		--constraint constraints.txt --editable '.[newest-python-tests]')
	@touch $@

# Peers of the benchmark.
$(eval $(call environment,$(LOGFIRE),--editable . logfire opentelemetry-exporter-otlp-proto-http))

clean:
	rm -rf $(VENV) .venv-* examples/agents/node/node_modules build dist .mypy_cache .pytest_cache .ruff_cache .cache .hypothesis
