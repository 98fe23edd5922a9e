# Every target has one line of help; `make help` prints them.
# Only the compose-* targets need Docker; only the pipeline needs Java, and brings one along where
# there is none. Nothing is installed outside .venv/ and .uv/, except by `make install`, and except
# system packages for the tests and for Docker, those only when make runs as root.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
UV := .uv/bin/uv
UV_VERSION := 0.13.8
TWINE_VERSION := 7.0.0
# Compiled modules are kept, in __pycache__: without them a daemon's start costs half as much again,
# and the tests make hundreds of those.
unexport PYTHONDONTWRITEBYTECODE
BASE_PYTHON := $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
STAMP := $(VENV)/.stamp
SPARK_STAMP := $(VENV)/.spark-stamp
SCANS_STAMP := $(VENV)/.scans-stamp

# Commands of the tests and the Debian packages that hold them: small ones for `make test`, and what
# is larger, or brings services along, for the long rest.
TEST_COMMANDS := mkfs.xfs mkfs.ext4 kcat setpriv losetup fusermount3
TEST_PACKAGES := xfsprogs e2fsprogs kcat util-linux mount fuse3
LONG_COMMANDS := chromium systemd-nspawn debootstrap
LONG_PACKAGES := chromium systemd systemd-container debootstrap
# Test processes at once; each takes whole files. JOBS=0 runs the tests in the process of pytest.
JOBS := 2
CLUSTER := conf/docker/cluster.sh
PYTEST := $(PY) -m pytest -q -rs -n $(JOBS) --dist loadfile --no-loadscope-reorder \
  --max-worker-restart 1
# A test that fails is run once more, alone. If it passes then, the summary names it as flaky, and
# more than FLAKY_LIMIT of those fail the run.
TESTED := $(PYTEST) -p tests.second_chance

# What takes long is marked in the tests (tests/conftest.py). Other people's clients, most of which
# are built first, are part 0; the files of the rest are dealt out to the others. Two minutes of soak
# are in each.
SLICES := 5
FOLDERS := tests/compose tests/systemd tests/disk tests/versions
REST := $(sort $(wildcard tests/spark/test_*.py tests/spark/*/test_*.py)) $(FOLDERS) $(sort $(shell \
  grep -rlE 'mark\.(long|sampled)' --include='test_*.py' tests/unit tests/faults tests/integration))
slice = $(if $(filter 0,$(1)),tests/clients,$(shell printf '%s\n' $(REST) | awk \
  'NR % ($(SLICES) - 1) + 1 == $(1)')) tests/soak

# Where `make install` puts things. DESTDIR stands before all of them, for packages and images.
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR ?= $(SYSCONFDIR)/systemd/system
INSTALL := PREFIX="$(PREFIX)" SYSCONFDIR="$(SYSCONFDIR)" UNITDIR="$(UNITDIR)" DESTDIR="$(DESTDIR)" \
  PYTHON="$(BASE_PYTHON)" SECURED="$(SECURED)" conf/install.sh

.PHONY: help
help:  ## Print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 20

.PHONY: setup
setup: $(STAMP) $(SCANS_STAMP)  ## Build .venv from the pinned requirements.lock (once; again when the pins change)

$(STAMP): requirements.lock pyproject.toml
	@"$(BASE_PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "setup: Python 3.11 or newer is needed, found $(BASE_PYTHON)" >&2; exit 1; }
	@if ! "$(BASE_PYTHON)" -c 'import ensurepip' 2>/dev/null; then \
	  if [ "$$(id -u)" = 0 ]; then apt-get install -y -q python3-venv; \
	  else echo "setup: this Python has no venv module; install python3-venv" >&2; exit 1; fi; fi
	@[ -x $(PY) ] || "$(BASE_PYTHON)" -m venv $(VENV)
	@# uv is ten times as fast as pip and does not read pip's settings: where it fails, pip does it.
	@if { [ -x $(UV) ] || { "$(BASE_PYTHON)" -m venv .uv && .uv/bin/pip install -q uv==$(UV_VERSION); }; } \
	  && UV_PYTHON_DOWNLOADS=never $(UV) pip install -q --compile-bytecode --python $(PY) -r requirements.lock -e .; \
	then echo "setup: installed with uv"; \
	else echo "setup: uv did not do it, installing with pip (slower)"; \
	  $(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip -q; \
	  $(PY) -m pip install -q -r requirements.lock -e .; fi
	@touch $(STAMP)

# Without a C compiler this says so and does nothing: the source runs as it is, only slower.
$(SCANS_STAMP): $(STAMP) conf/compile_scans.py kraftjbod/protocol/byte_scans.py
	@$(PY) conf/compile_scans.py
	@touch $(SCANS_STAMP)

.PHONY: spark
spark: $(SPARK_STAMP)  ## Add Spark and what the pipeline needs to .venv (half a gigabyte; once)
	@:

$(SPARK_STAMP): $(STAMP) requirements-spark.lock
	@echo "spark: installing Spark, a minute"
	@if [ -x $(UV) ] && UV_PYTHON_DOWNLOADS=never \
	  $(UV) pip install -q --compile-bytecode --python $(PY) -r requirements-spark.lock -e .; \
	then echo "spark: installed with uv"; \
	else $(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip -q; \
	  $(PY) -m pip install -q -r requirements-spark.lock -e .; fi
	@touch $(SPARK_STAMP)

# Installs the packages $(2) when root and one of the commands $(1) is missing; says so otherwise.
define install_packages
	@missing=""; for c in $(1); do \
	  PATH="$$PATH:/usr/sbin:/sbin" command -v $$c >/dev/null || missing="$$missing $$c"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "$@: installing $(2) (missing:$$missing)"; \
	  apt-get update -q >/dev/null 2>&1 || true; \
	  for package in $(2); do DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -q --no-install-recommends $$package >/dev/null 2>&1 \
	    || echo "$@: no package $$package; tests that need it will be skipped"; done; \
	else echo "$@: not root or no apt-get; tests that need$$missing will be skipped"; fi
endef

.PHONY: test-packages
test-packages:  ## Install the small system packages of the tests when root and missing
	$(call install_packages,$(TEST_COMMANDS),$(TEST_PACKAGES))

.PHONY: long-packages
long-packages: test-packages  ## The same for the long rest: Chromium, systemd-nspawn, debootstrap, Docker
	$(call install_packages,$(LONG_COMMANDS),$(LONG_PACKAGES))
	@# It says what it installs.
	@$(CLUSTER) install || echo "$@: the tests of docker-compose.yml will be skipped"

.PHONY: run
run: setup  ## The tour: a game day loses a disk, a controller and a broker, and no record; then Spark ingests, audits, plans, reports
	@$(MAKE) --no-print-directory spark || echo "run: Spark could not be installed; the tour goes without"
	@$(PY) -m kraftjbod.tour.main

.PHONY: up
up: setup  ## Start the same cluster (3 controllers, 3 brokers with 3 log dirs each; CONTROLLERS=1 for one) and leave it up
	@bin/kraftjbod-local up --data run $(if $(CONTROLLERS),--controllers $(CONTROLLERS))

.PHONY: stop
stop: setup  ## Stop the cluster that `make run` or `make up` left up
	@bin/kraftjbod-local down --data run

.PHONY: image
image: setup  ## Build the Docker image kraftjbod; BASE_IMAGE=... to build on another base
	@$(CLUSTER) image

.PHONY: compose-up
compose-up: setup  ## Start the cluster of docker-compose.yml and wait until it is healthy; SECURED=1 with TLS, logins and ACLs
	@SECURED=$(SECURED) $(CLUSTER) up

.PHONY: compose-down
compose-down:  ## Stop it in order and remove its containers; with ARGS=-v its volumes, too (SECURED=1 as at compose-up)
	@SECURED=$(SECURED) $(CLUSTER) down $(ARGS)

.PHONY: compose-test
compose-test: setup  ## Kill a broker, disks and all of a cluster of its own in containers
	@$(PY) -m pytest -q -s -rs tests/compose $(ARGS)

.PHONY: test
test: setup test-packages  ## Unit tables, fault disks, real processes and mounts: all but the long rest
	@$(TESTED) -m "not long" $(addprefix --ignore=,tests/spark tests/soak tests/clients $(FOLDERS)) $(ARGS)

.PHONY: test-slice
test-slice: setup spark long-packages  ## One part of the long rest: SLICE=0 to 4; CI takes one by its commit
	$(if $(filter tests/clients,$(call slice,$(SLICE))),@$(PY) -m tests.clients.programs)
	@$(TESTED) -m long $(call slice,$(SLICE)) $(ARGS)

.PHONY: test-all
test-all: setup spark long-packages  ## Every test there is: Spark, containers, boots, whole sweeps, long cycles
	@$(PY) -m tests.clients.programs
	@$(TESTED) $(ARGS)

.PHONY: unit
unit: setup  ## Unit tests only
	@$(PYTEST) tests/unit $(ARGS)

# Seconds per test. The tracer makes tests several times as slow, above all the simulated quorums.
COVERAGE_TIMEOUT := 900

.PHONY: coverage
coverage: setup  ## Measure which lines the unit tests run; prints a figure per package and writes docs/coverage.md
	@mkdir -p .cache/coverage
	@$(PY) -m coverage erase
	@# A failed test does not keep the page from being written; make fails after it.
	@failed=0; \
	$(PY) -m coverage run -m pytest -q -n $(JOBS) --dist loadfile --timeout $(COVERAGE_TIMEOUT) \
	  -o faulthandler_timeout=$$((2 * $(COVERAGE_TIMEOUT))) tests/unit $(ARGS) || failed=$$?; \
	$(PY) -m coverage combine -q; \
	$(PY) -m tests.tidy.coverage_page; \
	[ $$failed = 0 ] || { echo "coverage: the page is written, but the unit tests failed" >&2; exit $$failed; }

.PHONY: integration
integration: setup test-packages  ## Real daemons with foreign clients, kill -9 and dying dirs
	@$(PYTEST) tests/integration $(ARGS)

.PHONY: pipeline
pipeline: setup spark long-packages  ## Spark: source, sink and jobs, on real clusters of both kinds
	@$(PYTEST) tests/spark $(ARGS)

.PHONY: clients
clients: setup spark test-packages  ## Unmodified clients, Streams, Connect, Spark and dying disks; writes docs/clients.md
	@$(PY) -m tests.clients.programs
	@$(PYTEST) -p tests.clients.page tests/clients \
	  tests/spark/connector/test_official_connector.py $(ARGS)

.PHONY: tools-page
tools-page: setup spark  ## Kafka's tools against ours, ours against Apache Kafka; writes docs/tools.md
	@$(PY) -m tests.clients.tools_page

.PHONY: disk
disk: setup test-packages  ## Real mounts that fail: loop devices, tmpfs, unmounts (root only)
	@$(PY) -m pytest -q tests/disk $(ARGS)

.PHONY: fuzz
fuzz: setup  ## Flood a real cluster with generated and spoilt requests (FRAMES=1000000 SEED=...)
	@$(PY) -m tests.fuzz.main $(if $(FRAMES),--frames $(FRAMES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: soak
soak: setup  ## Break a real cluster at random and prove that nothing is lost (SECONDS=600 SEED=... LARGE=20 for 20 GB of log)
	@$(PY) -m tests.soak.soak $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(LARGE),--large $(LARGE))

.PHONY: sim
sim: setup  ## Break simulated clusters at random and judge them (SEEDS=10000, or SEED=123 to run one again)
	@$(PY) -m tests.sim.sim $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
	  $(if $(ONLY),--only $(ONLY)) $(if $(DURATION),--duration $(DURATION)) \
	  $(if $(UNLIMITED),--unlimited) $(if $(CONTROLLERS),--controllers $(CONTROLLERS)) \
	  $(if $(APPLICATIONS),--applications $(APPLICATIONS)) \
	  $(if $(KINDS),--kinds $(KINDS)) $(if $(LIGHT),--light) \
	  $(if $(LONGEST_CUT),--longest-cut $(LONGEST_CUT)) $(if $(POINTS),--points $(POINTS)) $(ARGS)

.PHONY: sim-mutants
sim-mutants: setup  ## Put closed holes back one at a time: the simulator has to find each (SEEDS=300)
	@$(PY) -m tests.sim.mutants $(if $(SEEDS),--seeds $(SEEDS)) $(if $(LIGHT),--light) $(MUTANTS) $(ARGS)

.PHONY: sim-coverage
sim-coverage: setup  ## Count the blocks of the daemons that simulated seeds enter (SEEDS=24 SEED=1 CONTROLLERS=3; ARGS=--missing lists the others)
	@$(PY) -m tests.sim.block_coverage $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
	  $(if $(CONTROLLERS),--controllers $(CONTROLLERS)) $(if $(UNLIMITED),--unlimited) \
	  $(if $(LIGHT),--light) $(ARGS)

.PHONY: systemd
systemd: setup long-packages  ## The units, checked, installed and booted under systemd (root only)
	@$(PY) -m pytest -q tests/systemd $(ARGS)

.PHONY: golden
golden: setup  ## Rewrite the golden transcripts; the diff is for a reader to judge
	@GOLDEN_REWRITE=1 $(PY) -m pytest -q tests/golden $(ARGS)
	@git --no-pager diff --stat -- tests/golden

.PHONY: fmt
fmt: setup  ## Format the code
	@$(PY) -m ruff format .
	@$(PY) -m ruff check -q --fix-only .

.PHONY: lint
lint: setup  ## Check formatting, lint rules and spelling
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(VENV)/bin/codespell

.PHONY: types
types: setup spark  ## mypy --strict over the package and the tests
	@$(PY) -m mypy --strict kraftjbod tests

.PHONY: tidy
tidy: setup  ## Imports, layers and the other rules of the source
	@$(PY) -m pytest -q tests/tidy $(ARGS)

.PHONY: check
check: lint types tidy unit  ## What every change must pass, in about eight minutes
	@$(PYTEST) -m "not long" tests/golden tests/faults $(ARGS)

.PHONY: docs
docs: map  ## Write the pages of docs/ that come from the code: configuration, metrics, events, protocol, states
	@$(PY) -m tests.tidy.manual

.PHONY: map
map: setup  ## Write kraftjbod/FILES.md from the docstrings
	@$(PY) -m tests.tidy.file_map

.PHONY: stubs
stubs: setup  ## Write the types of Kafka's messages, kraftjbod/protocol/messages.pyi, from the schemas
	@$(PY) -m tests.tidy.message_stubs

.PHONY: bench
bench: setup spark  ## Throughput, latency, restart and failover figures beside what the machine can do
	@$(PY) -m tests.bench.main $(ARGS)

.PHONY: dist
dist: setup  ## Build an sdist and a wheel for every Python and machine into dist/, and check what they say of themselves
	@rm -rf dist
	@HATCH_BUILD_NO_HOOKS=true $(UV) build -q --out-dir dist
	@$(UV) tool run -q --from twine==$(TWINE_VERSION) twine check --strict dist/*.whl dist/*.tar.gz

.PHONY: install
install:  ## Install daemons, tools and systemd units (PREFIX=/usr/local SYSCONFDIR=/etc DESTDIR= SECURED=1)
	@$(INSTALL) install

.PHONY: uninstall
uninstall:  ## Remove what `make install` put there; configuration, data and the user stay
	@$(INSTALL) uninstall

.PHONY: clean
clean:  ## Stop the clusters, remove run/, Docker volumes and images, caches, both environments
	@$(CLUSTER) clean
	@[ ! -f run/cluster.json ] || [ ! -x $(PY) ] || bin/kraftjbod-local down --data run
	@rm -rf run dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis $(VENV) .uv
	@rm -f kraftjbod/protocol/_byte_scans_*
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
