# Every target does the set-up it needs: system packages that are missing (apt-get, as root), .venv, the launcher.
# PYTHON=… names an interpreter of Python 3.11 or newer; ARGS=… is handed to the command that a target runs.

ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help lab test pythons envtest schemas bench lint format wheels image lock clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST) | while IFS='	' read -r target text; do \
		printf '  make %-8s %s\n' "$$target" "$$text"; done

lab: ## a world of network namespaces: pods get addresses, use an internet, and are counted (root)
	@.ci/setup lab
	@.venv/bin/python -m cni.build
	.venv/bin/netmgr lab run $(ARGS)

test: ## every test, those on the real kernel and with real container runtimes included (root)
	@.ci/setup test
	@.venv/bin/python -m cni.build
	.venv/bin/python -m pytest $(ARGS)

pythons: ## the tests that need no root, on every Python from 3.11 to 3.14 that this machine has
	@.ci/setup test
	.ci/pythons $(ARGS)

envtest: ## build kube-apiserver and etcd for the tests of Kubernetes, once; KUBEBUILDER_ASSETS names others
	@.ci/setup test
	@.ci/envtest

schemas: ## read anew what Terraform's provider and the cloud take, for the tests of what is rendered (npm, node)
	@.ci/setup test
	.venv/bin/python tests/schemas/extract.py

bench: ## measure against Debian's ptp and against no rules; ARGS names subjects (root; see BENCHMARKS.md)
	@.ci/setup test
	@.venv/bin/python -m cni.build
	.venv/bin/python -m tests.bench $(ARGS)

lint: ## formatting, lint rules, types and layers
	@.ci/setup lint
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

format: ## rewrite the code as `make lint` wants it, as far as a program can
	@.ci/setup lint
	.venv/bin/ruff check --fix-only .
	.venv/bin/ruff format .

wheels: ## netmgr and all it needs as wheels in dist/, for nodes without a compiler and an index
	@.ci/setup lint
	.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --use-pep517 --require-hashes \
		--requirement .ci/runtime.lock --wheel-dir dist

image: ## build the container image and try it (podman or docker); TAG names it, BASE another Debian, ARGS goes to the build
	.ci/image $(or $(TAG),netmgr:dev) $(ARGS)

lock: ## pin every Python package anew, at the newest version pyproject.toml allows
	@.ci/setup lint
	.ci/lock

clean: ## remove everything that was made here, .venv included
	rm -rf .venv cni/bin build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find netmgr cni exporter tests -name __pycache__ -prune -exec rm -rf {} +
