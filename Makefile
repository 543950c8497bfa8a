# What a user and a developer type. Everything a fresh machine needs is installed by these targets
# (system packages: see README, "What must be there").

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
K8S ?= 1.37
PYTEST_ARGS ?=
BENCH_ARGS ?=

STAMPS := .make
BIN := .venv/bin
UV_VERSION := 0.13.9
UV := $(STAMPS)/uv/bin/uv

# Tests that need what "make test" does not: Go, a cluster, a GPU, a quiet machine.
APART := autoscaler bench cluster gpu kubelet oracle scheduler

.PHONY: help demo test lint unit test-cluster test-oracle cluster cluster-down bench bench-pods image env clean

help: ## Say what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: $(STAMPS)/env ## Mock DGX H100, embedded API server, kubelet stand-in: a claim from allocation to CDI and back
	@$(BIN)/gpudra demo

test: lint unit ## Everything that needs no Go: linters, types, architecture, all tests but the cluster's

lint: $(STAMPS)/env ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(STAMPS)/env ## The tests alone
	$(BIN)/pytest -m "not cluster and not gpu and not image" -n auto --dist loadfile $(foreach folder,$(APART),--ignore tests/$(folder)) $(PYTEST_ARGS)

test-cluster: $(STAMPS)/env ## Build etcd, Kubernetes, containerd and runc, start them, run the cluster tests, take all down
	$(BIN)/python -m hack.cluster test --k8s $(K8S) -- $(PYTEST_ARGS)

test-oracle: $(STAMPS)/env ## Build the scheduler's real allocator (Go) and hold the port of it to it, on random clusters
	$(BIN)/python -m hack.oracle build --version all
	$(BIN)/pytest tests/oracle $(PYTEST_ARGS)

cluster: $(STAMPS)/env ## A running one-node cluster with the agent on a mock node; prints the KUBECONFIG line
	@$(BIN)/python -m hack.cluster up --k8s $(K8S) --agent

cluster-down: $(STAMPS)/env ## End it
	@$(BIN)/python -m hack.cluster down

bench: $(STAMPS)/env ## What the agent costs (tests/bench), as a table; etcd and kube-apiserver are those of test-cluster
	$(BIN)/python -m tests.bench $(BENCH_ARGS)
	$(BIN)/pytest tests/bench $(PYTEST_ARGS)

bench-pods: $(STAMPS)/env ## What a claim adds to a pod from its creation to its container's start, on the cluster of test-cluster
	$(BIN)/python -m tests.bench.pods $(BENCH_ARGS)

env: $(STAMPS)/env ## The virtual environment with the package, its C extension and all development tools

$(UV):
	@echo "== tools: uv $(UV_VERSION)"
	@$(PYTHON) -m venv $(STAMPS)/uv
	@$(STAMPS)/uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(STAMPS)/env: pyproject.toml uv.lock setup.py $(wildcard native/csrc/*.[ch] native/csrc/*.py) | $(UV)
	@echo "== environment: .venv (dependencies by hash, C extension compiled)"
	@$(UV) sync --quiet --frozen --all-extras --python $(PYTHON)
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --reinstall --editable .
	@touch $@

clean: ## Remove what was built here
	rm -rf $(STAMPS) .venv build dist *.egg-info native/*.abi3.so native/_nvml.c .mypy_cache .ruff_cache .pytest_cache
