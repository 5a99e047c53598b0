# `make demo` and `make test` set up everything they need; see CONTRIBUTING.md.
PYTHON ?= python3
# Ray starts no workers below a path with blanks. There, the environments are used by a link to this folder.
LINK = /tmp/otel-rollout-of-$(shell id -u)-$(shell pwd | cksum | cut -d ' ' -f 1)
BIN := $(if $(word 2,$(CURDIR)),$(shell ln -sfn "$$PWD" $(LINK) && echo $(LINK)/)).venv/bin
# What is built once for all checkouts: the Collector, programs in Go, Debian's newest Python (tests/dev_cache.py).
export ROLLOUT_DEV_CACHE ?= $(HOME)/.cache/otel-rollout-dev
# Tests start thousands of processes. Each would compile the modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

# $(call part,NAME,COMMAND) runs a command and says how long it took.
define part
	@echo "== $(1)"
	@began=$$(date +%s); $(2) || exit 1; \
	awk -v s=$$(( $$(date +%s) - began )) 'BEGIN { printf "== $(1): %.1f minutes\n", s / 60 }'
endef
# $(call in_pairs,TARGETS) makes two targets at a time: they wait more than they work.
in_pairs = $(MAKE) --no-print-directory --jobs 2 --output-sync=line $(1)
# $(call debian,COMMAND,PACKAGES) installs Debian's packages where a command is missing.
debian = { command -v $(1) || { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes \
	--no-install-recommends $(2); }; } > /dev/null

# What `make test-all` runs: two parts at a time, then the longest alone, because it takes twice as long beside others.
# Nothing is built or installed beside them: a compiler keeps Ray's nodes from starting in the 30 s that Ray gives them.
NODE_AGENT := examples/agents/node/node_modules/.package-lock.json
OTHER_TESTS := extended verl newest-python vllm trl docs verl-older verifiers agents black-box postgresql foreign \
	oldest-ray object-store oldest-otel package
TESTS := promises versions $(filter-out docs,$(OTHER_TESTS))
ENVIRONMENTS := agents dist docs foreign litellm newest-python oldest-otel oldest-ray phoenix verifiers verl verl-older vllm

.PHONY: help demo demo-train test test-all lint types docs bench soak mutants upgrade dist parts clean collector \
	tailing-collector go-tools s3-server browser postgresql-server built-for-tests built-for-other-tests older-verl $(TESTS)

help:  ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: .venv/.demo  ## A traced rollout on Ray, into mlflow.db and ./rollouts
	$(BIN)/otel-rollout demo $(ARGS)

demo-train: .venv/.trl build/tiny-model/config.json  ## GRPO by TRL with a tool, traced, into ./mlflow.db
	@examples/trl/demo.sh

test:  ## What the README promises: with real Ray, MLflow and Weave
	@echo "== make test installs two environments below this folder (about 8 GB), checks style and types, and tests."
	@echo "== On two cores it takes up to 10 minutes the first time, and up to 8 after that. It needs no root, Go or npm."
	$(call part,make test,$(MAKE) --no-print-directory built-for-tests && $(call in_pairs,lint types) && \
		$(MAKE) --no-print-directory promises)

test-all:  ## The rest: sweeps, attacks, a browser, frameworks, versions
	@echo "== It needs root (tests mount, and act as other users), Go, npm and apt, and about an hour on two cores."
	$(call part,make test-all,$(call in_pairs,built-for-other-tests) && $(call in_pairs,$(filter-out extended,$(OTHER_TESTS))) && \
		$(MAKE) --no-print-directory extended)

lint: .venv/.dev  ## Style, and which rooms import which
	$(call part,lint,$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports)
types: .venv/.dev  ## Strict types
	$(call part,types,$(BIN)/mypy)

# Each part of the tests, in the environment that tests/environments.toml names; ARGS are pytest's.
$(TESTS): .venv/.dev
	@$(BIN)/python -m tests.run $@ $(ARGS)
promises: built-for-tests
extended: built-for-tests .venv-phoenix/.ready tailing-collector go-tools browser $(NODE_AGENT)
agents foreign newest-python oldest-otel oldest-ray verifiers verl verl-older vllm: %: .venv-%/.ready
verl: .venv-weave/.ready
black-box: .venv-litellm/.ready .venv-vllm/.ready build/tiny-model/config.json
postgresql: .venv-weave/.ready postgresql-server
object-store: s3-server
package: dist
verl-older: older-verl

docs: .venv-docs/.ready  ## The documentation site, in build/site; no link may be dead
	$(call part,the documentation site,.venv-docs/bin/python -m website)

bench: .venv/.dev .venv-weave/.ready .venv-verl-bench/.ready .venv-logfire/.ready collector  ## What tracing costs, beside others
	$(BIN)/python -m benchmarks $(ARGS)
soak: built-for-tests  ## Ten rounds of outages, kills, faults and fuzzing: two hours
	$(call part,soak,$(BIN)/python -m tests.soak $(ARGS))
mutants: built-for-tests .venv-mutants/.ready  ## Of sampled changes to the product, which tests notice what
	$(call part,mutants,.venv-mutants/bin/python -W error::SyntaxWarning -m tests.mutants $(ARGS))

# What a nightly run tests. The other packages move only where the named ones need it.
upgrade: .venv/.tools  ## Newer versions for GROUP=dev: UPGRADE='mlflow==3.15.* ray'
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --no-emit-package otel-rollout --group $(or $(GROUP),dev) \
		$(foreach package,$(UPGRADE),--upgrade-package '$(package)') --output-file constraints/$(or $(GROUP),dev).txt

# The time of the last commit: the same source gives the same bytes.
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: .venv-dist/.ready  ## The source distribution and the wheel, checked, in dist/
	.venv-dist/bin/cffconvert --validate
	rm -rf dist
	.venv-dist/bin/python -m build --no-isolation --outdir dist . > /dev/null
	.venv-dist/bin/twine check --strict dist/*
	.venv-dist/bin/check-wheel-contents dist/*.whl

parts:  # of test-all, as JSON, for the workflows
	@$(PYTHON) -c 'import json, sys; print(json.dumps(sys.argv[1:]))' $(OTHER_TESTS)

clean:  ## Remove what was built and installed here
	rm -rf .venv .venv-* $(dir $(NODE_AGENT)) build dist .mypy_cache .pytest_cache .ruff_cache .cache .hypothesis

built-for-tests: .venv/.dev .venv-weave/.ready
built-for-other-tests: built-for-tests $(ENVIRONMENTS:%=.venv-%/.ready) tailing-collector go-tools browser postgresql-server \
	s3-server $(NODE_AGENT) build/tiny-model/config.json dist

collector: .venv/.tools  ## An OpenTelemetry Collector for collector-config/, in build/
	$(call part,the Collector,$(BIN)/python collector-config/get_collector.py)
tailing-collector: .venv/.dev collector
	$(call part,a Collector that reads the spool,$(BIN)/python -m tests.collector.tailing)
s3-server: .venv/.dev
	$(call part,a server that speaks S3,$(BIN)/python -m tests.go_tools versitygw)
go-tools: .venv/.dev
	$(call part,what renders the manifests and checks the workflows,$(BIN)/python -m tests.go_tools kustomize actionlint)
browser: ; $(call part,a browser,$(call debian,chromedriver,chromium chromium-driver))
postgresql-server: ; $(call part,PostgreSQL,$(call debian,/usr/lib/postgresql/*/bin/postgres,postgresql))
$(NODE_AGENT): examples/agents/node/package-lock.json  # OpenTelemetry's SDK for JavaScript: 19 packages of 35 MB
	$(call part,an agent in JavaScript,$(call debian,npm,nodejs npm) && \
		npm ci --prefix $(dir $<) --no-audit --no-fund --loglevel error && touch $@)
build/tiny-model/config.json: examples/trl/tiny_model.py examples/trl/grpo_calculator.py | .venv/.trl
	$(call part,a tiny model that calls a tool,OMP_NUM_THREADS=1 $(BIN)/python examples/trl/tiny_model.py build/tiny-model)

# The main environment: what installs the others, then by extras, then all.
UV_INSTALL := $(BIN)/uv pip install --quiet
.venv/.tools: Makefile pyproject.toml constraints/dev.txt $(wildcard autoload/*.p*)
	$(PYTHON) -m venv $(BIN:/bin=)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints/dev.txt uv
	@touch $@
OF_demo := --editable '.[demo]'
OF_trl := --editable '.[trl]' trl
OF_dev := --editable . --group dev
.venv/.%: .venv/.tools
	$(call part,install,$(UV_INSTALL) --python $(BIN)/python --constraint constraints/dev.txt $(OF_$*))
	@touch $@ $(if $(filter dev,$*),.venv/.demo .venv/.trl)

# Any other: group NAME of pyproject.toml, by constraints/NAME.txt and its overrides, in .venv-NAME.
.venv-%/.ready: constraints/%.txt pyproject.toml | .venv/.tools
	$(or $(PYTHON_OF_$*),$(PYTHON) -m venv --clear) .venv-$*
	$(call part,install .venv-$*,$(UV_INSTALL) --python .venv-$*/bin/python --constraint $< \
		$(addprefix --override ,$(wildcard constraints/$*-overrides.txt)) --group $*)
	@touch $@
.venv-verl/.ready: export UV_COMPILE_BYTECODE = 1
VERL_VERSION ?= 0.8.0
older-verl: .venv-verl-older/.ready  # another version, if one is asked for
	@$(UV_INSTALL) --python $(<D)/bin/python --constraint constraints/verl-older.txt verl==$(VERL_VERSION)
# Of Debian's newer release, unpacked where the machine has an older one.
NEWEST_PYTHON = $(ROLLOUT_DEV_CACHE)/debian-trixie-python-3.13/usr/bin/python3.13
PYTHON_OF_newest-python = $(BIN)/uv venv --quiet --clear --python $(NEWEST_PYTHON)
.venv-newest-python/.ready: $(NEWEST_PYTHON)
$(NEWEST_PYTHON): | .venv/.tools
	$(call part,Python 3.13,$(BIN)/python -m tests.debian_python 3.13 trixie)
