# Every target does its own set-up: missing system packages (apt-get, as root), .venv, the launcher.
# PYTHON=… selects an interpreter (3.11 or newer); ARGS=… is passed to the command that a target runs.

ARGS ?=
# What the rules need of a kernel. Emulation is slow: this takes some ten minutes on each, all tests would take hours.
VM_TESTS = -m root --timeout 900 tests/kernel/test_conntrack.py tests/contracts/test_rules.py \
	$(addprefix tests/contracts/test_rules_,packets.py iptables.py nftables.py router.py) \
	$(addprefix tests/contracts/,raw_before_defrag.py uplink_promises.py) tests/runtimes/apparmor_units.py $(wildcard tests/kernel/flowtable_*.py tests/kernel/test_limits*.py) $(addprefix tests/kernel/test_budgets,.py _quotas.py) \
	$(addprefix tests/kernel/test_,accounting_wire_bytes.py wire_charges.py wire_for_long.py)

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z0-9-]*\):.*\#\# .*/\1/p' $(MAKEFILE_LIST))

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | while IFS='	' read -r target text; do \
		printf '  make %-9s %s\n' "$$target" "$$text"; done

# Whatever .ci/setup prepares for this purpose, and the launcher.
ready-%:
	@.ci/setup $*
	@.venv/bin/python -m cni.build

lab: ready-lab ## demonstrate netmgr in network namespaces: nodes, pods, an internet, and every byte counted (root)
	.venv/bin/python -m tests.lab run $(ARGS)

test: ready-test ## run the decisive tests: pure ones, the rules' contracts, nodes, a container runtime (root; ARGS are pytest's)
	.ci/tests $(ARGS)

test-all: ## run every test but whole clusters': more ways, faults and backends, Multus and an API server, built once (root)
	@.ci/setup test
	@.ci/envtest
	@.ci/programs runtimes/multus multus
	@.venv/bin/python -m cni.build
	.ci/tests --all

e2e: ready-e2e ## run the tests on a real Kubernetes of two nodes, whose programs are built once (root; ARGS=--stay keeps it)
	@for folder in "" /previous /containerd /conformance /coredns /policies; do \
		.ci/programs e2e/programs$$folder e2e || exit; done
	@.ci/programs helm/programs helm
	image=$$(.ci/e2e-image) && NETMGR_E2E_IMAGE=$$image .ci/tests tests/e2e $(ARGS)

arm64: ## build the launcher for arm64 and have an agent serve it under QEMU (root; downloads 150 MB)
	@.ci/setup arm64
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes \
		--requirement .ci/launcher-compiler.lock
	@.venv/bin/python -m cni.build
	.venv/bin/python -m pytest $(or $(ARGS),tests/kernel/arm64_launcher.py tests/kernel/test_launcher_build.py)

vm: ready-vm ## run kernel tests on Debian's 6.1 and 6.12, or on KERNEL, in QEMU; ARGS are pytest's (root; see .ci/vm)
	@.venv/bin/python -m compileall -q netmgr cni exporter tests
	status=0; for kernel in $(or $(KERNEL),6.1 6.12); do \
		.ci/vm $$kernel .venv/bin/python -m pytest $(or $(ARGS),$(VM_TESTS)) || status=$$?; \
	done; exit $$status

pythons: ## run the tests that need no root on every installed Python from 3.11 to 3.14
	@.ci/setup test
	.ci/pythons $(ARGS)

bench: ## measure against today's ptp and against no rules; ARGS selects subjects (root; see BENCHMARKS.md)
	@.ci/setup test
	@.ci/programs bench/peers bench
	@.venv/bin/python -m cni.build
	.venv/bin/python -m tests.bench $(ARGS)

fleet: ## measure thousands of nodes on a real Prometheus and on a real API server; ARGS selects (hours)
	@.ci/setup test
	@.ci/envtest
	.venv/bin/python -m tests.fleet $(ARGS)

limits: ready-vm ## hold limits of 10 Mbit/s to 1 Gbit/s against what TCP attains, near and 40 ms away, in QEMU (root)
	.ci/vm $(or $(KERNEL),6.12) .venv/bin/python -m pytest $(or $(ARGS),tests/kernel/limits_rates.py)

chaos: ready-test ## random faults on a node and on a hub with spokes, for each backend; NETMGR_CHAOS_SEED and _STEPS choose (root; hours)
	NETMGR_CHAOS_STEPS=$${NETMGR_CHAOS_STEPS:-1000} .venv/bin/python -m pytest tests/kernel/test_chaos.py $(ARGS)

cuts: ready-test ## kill the agent between any two durable steps of everything it does, on each backend (root; three hours)
	NETMGR_CUTS=$${NETMGR_CUTS:-all} .venv/bin/python -m pytest tests/kernel/test_cuts.py $(ARGS)

soak: ready-test ## have 100,000 pods come and go, and show that nothing of netmgr grows with them (root; half an hour)
	NETMGR_SOAK_PODS=$${NETMGR_SOAK_PODS:-100000} .venv/bin/python -m pytest --timeout 7200 tests/kernel/test_bounds.py $(ARGS)

wire: ready-test ## hold wire bytes against what a wire carries, for NETMGR_WIRE_SECONDS (3600); NETMGR_WIRE_SEED chooses (root)
	NETMGR_WIRE_SECONDS=$${NETMGR_WIRE_SECONDS:-3600} .venv/bin/python -m pytest -s tests/kernel/test_wire_for_long.py $(ARGS)

intrusions: ready-test ## have a pod with NET_ADMIN and NET_RAW attack its node for NETMGR_INTRUSION_SECONDS (180), on each backend (root)
	NETMGR_INTRUSION_SECONDS=$${NETMGR_INTRUSION_SECONDS:-180} .venv/bin/python -m pytest --timeout 1800 tests/kernel/test_pod_with_capabilities.py $(ARGS)

fuzz: ## fuzz all parsers with coverage feedback, NETMGR_FUZZ_SECONDS (60) each; ARGS are targets (an hour in all)
	@.ci/setup fuzz
	.ci/fuzz $(ARGS)

mutants: ## change the deciding code one thing at a time and have fast tests notice; ARGS are rooms of .ci/mutants
	.ci/mutants $(ARGS)

lint: ## check formatting, lint rules, types and layers
	@.ci/setup lint
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

format: ## format the code and apply safe lint fixes
	@.ci/setup lint
	.venv/bin/ruff check --fix-only .
	.venv/bin/ruff format .

wheels: ## build netmgr and its dependencies as wheels in dist/, for nodes without compiler or package index
	@.ci/setup lint
	.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --use-pep517 --require-hashes \
		--requirement .ci/runtime.lock --wheel-dir dist

release: ## build a tagged release in dist/release: wheels, .deb, source, manifests, chart, SBOM; with BASE the image
	@.ci/setup lint
	@.venv/bin/python .ci/release --check
	@.ci/setup test
	@.ci/envtest
	@.ci/programs helm/programs helm
	.venv/bin/python .ci/release

artifacts: ## hold the chart against kustomize, make a release, and install and try all of one: what dist/release has, or this commit's (root)
	@.ci/setup artifacts
	@.ci/envtest
	@.ci/programs helm/programs helm
	$(if $(wildcard dist/release/SHA256SUMS),NETMGR_RELEASE=$(CURDIR)/dist/release) \
		.venv/bin/python -m pytest $(or $(ARGS),$(addprefix tests/helm/,chart.py lifecycle.py release.py artifacts.py))

image: ## build and try the container image (podman or docker); TAG names it, BASE selects another Debian
	.ci/image $(or $(TAG),netmgr:dev) $(ARGS)

lock: ## update every pinned Python package to the newest version that pyproject.toml allows
	@.ci/setup lint
	.ci/lock

docs: ## build the documentation as a site in build/site; a link that leads nowhere fails
	@.ci/setup lint
	.ci/docs/build

clean: ## remove everything that make created, including .venv
	rm -rf .venv cni/bin build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find netmgr cni exporter tests -name __pycache__ -prune -exec rm -rf {} +
