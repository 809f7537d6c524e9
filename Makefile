# The only commands that CI and the README use.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/tools
PIP := -m pip install --quiet --disable-pip-version-check
# Nothing is installed but what a lock file names with its hash, build tools included.
LOCKED := $(PIP) --require-hashes --no-deps --no-build-isolation
export PATH := $(CURDIR)/$(VENV)/opt/bin:$(CURDIR)/$(BIN):$(PATH)
# Our processes are many and short: each would compile what it imports again (images of containers set this, to be small).
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest --durations=25 --durations-min=10

# What runs beside each other, the longest files first; and what starts real trainers, which take the processors for themselves.
LIGHT := $(addprefix tests/system/,sim slurm contract integration security agents store faults prometheus page gpu tokens)
HEAVY := tests/real_trainers
# The order as it is given: a file of one long test is not to be the last.
BESIDE := --dist loadfile --no-loadscope-reorder

.PHONY: demo help test test-nightly test-bare test-torch test-monarch check chaos parity gpu configs chaos-long killpoints upgrade ground sim bench bench-detection bench-slurm bench-nodes install install-dev lock audit wheel debian docs clean

demo: install  ## train a Llama 3 debug model here, break it three ways, see it train on
	@sh deploy/debian.sh iproute2
	$(BIN)/supervisor demo

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

test: debian check  ## everything that a developer without a GPU can run
	LANE=light $(PYTEST) -n 5 $(BESIDE) $(LIGHT)
	LANE=heavy $(PYTEST) -n 3 $(BESIDE) $(HEAVY)

test-nightly: debian  ## further cases of what `make test` shows
	$(PYTEST) -n 2 $(BESIDE) -m long tests

# The newest that pyproject.toml takes; the lock files pin another. Its public build brings gigabytes of CUDA.
TORCH ?= 2.14.1
OTHER := .venv-other
test-torch: debian  ## nightly, with network: the tests of real trainers with another torch of the range (TORCH=VERSION), in a .venv of its own
	$(MAKE) VENV=$(OTHER) install-dev
	$(OTHER)/bin/python $(PIP) torch==$(TORCH)
	PATH="$(CURDIR)/$(OTHER)/bin:$$PATH" $(OTHER)/bin/python -m pytest -n 3 $(BESIDE) $(HEAVY)

# Beside .venv, whose packages it sees: no lock file has Monarch, which brings 300 MB.
MONARCH := .venv-monarch
test-monarch: debian  ## nightly, with network: Monarch meshes on a pool, with the extra that pyproject.toml pins, in a .venv of its own; four minutes
	test -e $(MONARCH)/bin/python || $(BIN)/python -m venv $(MONARCH)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(MONARCH)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/everstep.pth"
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["monarch"], sep="\n")' \
		| xargs -d '\n' $(MONARCH)/bin/python $(PIP)
	LANE=monarch PATH="$(CURDIR)/$(MONARCH)/bin:$$PATH" PYTHONPATH="$(CURDIR)" $(MONARCH)/bin/python -m pytest -m '' --durations=25 --durations-min=10 tests/system/monarch

test-bare: install-dev  ## nightly: `make check` in a bare Debian made by debootstrap, as root and as an ordinary user; BARE=DIR keeps it
	@sh tests/bare.sh

check: install-dev  ## the fast lane: lint, types, layers, unit, properties
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports
	LANE=fast $(PYTEST) -n 3 tests/unit tests/properties tests/architecture tests/corpus

chaos: debian  ## every fault that can be made here, once, with real trainers: a certificate in runs/chaos
	rm -rf runs/chaos
	$(BIN)/supervisor chaos run fault_injection/schedules/every.toml

parity: install-dev  ## 300 steps on a token store with 14 faults, beside the same without: loss, parameters, samples; a quarter of an hour
	$(BIN)/python -m benchmarks.parity

gpu: install  ## what one CUDA device shows: two groups that share it, a kill, a compiled config, one with flash attention, step time beside TorchTitan's own trainer; at most eight minutes
	$(BIN)/python -m benchmarks.gpu

configs: install-dev  ## nightly: every config of TorchTitan's registries, checked, and the debug-sized ones trained through a kill; twenty minutes
	rm -rf build/models
	$(BIN)/python $(LOCKED) --target build/models -r requirements/models.lock
	PYTHONPATH=$(CURDIR)/build/models $(BIN)/python -m tests.real_trainers.titan.stock_configs --results benchmarks/results/titan_configs.json

chaos-long: debian  ## twenty seeds, each of eight faults, some at once, groups of two ranks and of two nodes, and what older seeds found: about two hours; CHAOS=--go-on goes on with one that was interrupted
	$(BIN)/python -m benchmarks.chaos_compound $(CHAOS)
	rm -rf runs/ranks runs/nodes runs/found
	$(BIN)/supervisor chaos run fault_injection/schedules/ranks.toml --name ranks
	$(BIN)/supervisor chaos run fault_injection/schedules/nodes.toml --name nodes
	$(BIN)/supervisor chaos run fault_injection/schedules/found.toml --name found

killpoints: debian  ## the long lane: 200 rounds of kills at failpoints, and 50 of groups of two nodes, about 45 minutes
	$(BIN)/python -m tests.nightly.killpoints --results benchmarks/results/killpoints.json
	$(BIN)/python -m tests.nightly.killpoints --rounds 50 --nodes-per-group 2 --results benchmarks/results/killpoints_nodes.json

# One that takes `insecure = true` beside certificates, which the etcds of distributions need.
FROM ?= e357da10
upgrade: debian  ## nightly: a live system of an earlier commit (FROM=COMMIT) is upgraded in place, in plain and with certificates; two minutes
	$(BIN)/python -m tests.nightly.upgrade --from $(FROM)

ground: debian  ## nightly, the long lane of `supervisor up`: each of its parts killed, ended or frozen while nothing, a run or a recovery goes on; ten minutes
	$(BIN)/python -m tests.nightly.ground --results benchmarks/results/ground.json

sim: install-dev  ## the long lane of the simulator: 10,000 seeds of 500 nodes, some three and a half hours on two quiet cores; SIM=--go-on goes on with one that was interrupted
	$(BIN)/python -m fault_injection.sim --seeds 10000 --nodes 500 --jobs 2 --out benchmarks/results/simulator.json $(SIM)

bench: install-dev  ## measure, and write benchmarks/results
	$(BIN)/python -m benchmarks.decide
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.metrics --agent 45
	$(BIN)/python -m benchmarks.control_plane
	$(BIN)/python -m benchmarks.tokens
	-$(BIN)/python -m benchmarks.data_cost
	$(BIN)/python -m benchmarks.simulate_months
	-$(BIN)/python -m benchmarks.simulated_vs_published
	-$(BIN)/python -m benchmarks.simulator_vs_real
	-$(BIN)/python -m benchmarks.sync

bench-detection: debian  ## break a run in some twenty ways, ten times each; then leave a healthy one alone for half an hour
	$(BIN)/python -m benchmarks.detection; missed=$$?; $(BIN)/python -m benchmarks.healthy && exit $$missed

bench-slurm: debian  ## measure on a real Slurm how long a lost node and a relaunch take: as root, about an hour
	$(BIN)/python -m benchmarks.slurm_node_loss
	$(BIN)/python -m benchmarks.relaunch

bench-nodes: debian  ## measure how long a lost node of a two-node group costs, beside restarts of the group and of the job: as root, half an hour
	$(BIN)/python -m benchmarks.groups_over_nodes

docs: install-dev  ## generate what is generated: the reference pages, the dashboards, the alerts
	$(BIN)/python -m dashboards.build
	$(BIN)/python -m dashboards.reference
	$(BIN)/python -m benchmarks.report

install: $(VENV)/installed  ## the program in .venv; again when pyproject.toml or a lock file has changed
install-dev: $(VENV)/installed-dev  ## the same, with the tools that check and test it

# Editable by a line in a .pth file: the import hook that setuptools would install slows every start of Python.
# torch first: the lock files leave out what its public build needs more than the CPU build.
# The distribution had another name once: two of them would both own the commands.
# A .venv that works stays: another Python's `venv` would leave one that is half its own.
$(VENV)/installed: pyproject.toml $(addprefix requirements/,build.lock torch-cpu.lock cuda.lock demo.lock)
	$(BIN)/python -c 'import ssl' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip uninstall -qqq --yes --disable-pip-version-check fault-tolerant-pretraining-supervisor
	$(BIN)/python $(LOCKED) -r requirements/build.lock
	sh requirements/torch.sh $(BIN)/python $(LOCKED)
	$(BIN)/python $(LOCKED) -r requirements/demo.lock
	$(BIN)/python $(PIP) --no-deps --no-build-isolation -e . --config-settings editable_mode=compat
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements/dev.lock
	$(BIN)/python $(LOCKED) -r requirements/dev.lock
	@touch $@

$(TOOLS)/installed: requirements/release.lock
	$(PYTHON) -m venv --clear $(TOOLS)
	$(TOOLS)/bin/python $(LOCKED) -r requirements/release.lock
	@touch $@

lock: $(TOOLS)/installed  ## write the lock files again, after a change of the dependencies; LOCK=--upgrade brings the newest of each
	sh requirements/lock.sh $(LOCK)

audit: $(TOOLS)/installed  ## nightly, with network: secrets in tracked files, known holes of what the lock files pin
	git ls-files -z | xargs -0 $(TOOLS)/bin/detect-secrets-hook
	sh requirements/audit.sh $(filter-out %/torch-cpu.lock,$(wildcard requirements/*.lock))

wheel: install-dev $(TOOLS)/installed  ## the last commit as a wheel, with its bill of materials (CycloneDX), in dist
	rm -rf build/wheel dist
	mkdir -p build/wheel
	git archive HEAD | tar -x -C build/wheel
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(TOOLS)/bin/python -m build --wheel --no-isolation --outdir dist build/wheel >/dev/null
	PYTHONWARNINGS=ignore $(TOOLS)/bin/cyclonedx-py requirements build/wheel/requirements/demo.lock --pyproject build/wheel/pyproject.toml \
		--output-reproducible --output-file "$$(ls dist/*.whl | sed 's/whl$$/cdx.json/')"
	$(BIN)/python -m tests.nightly.bill_of_materials dist/*.cdx.json

debian: install-dev  ## the Debian packages that the tests need, as root
	@sh deploy/debian.sh iproute2 iptables etcd-server openssl strace faketime bindfs rsync chromium-headless-shell \
		prometheus prometheus-alertmanager \
		slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge

clean:  ## remove .venv, those beside it, and what was built and cached
	rm -rf $(VENV) .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
