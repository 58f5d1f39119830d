# Every target sets itself up: a virtual environment with pinned packages, and for the tests
# the programs they start for real (promtool, prometheus, amtool, nginx, chromium).
PYTHON ?= python3
VENV ?= .venv
TORCH ?= lock/torch.txt
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
DEVELOPED := $(VENV)/developed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
TORCH_ALONE := $(PIP) --require-hashes --only-binary=:all: -r $(TORCH)
LOCKED := VENV=$(VENV) scripts/locked.sh $(BIN)/python

# Where it is set, as in many images, every server and command that a test starts compiles anew whatever it
# imports: 1.4 of the 2.9 seconds in which a watch starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-unit mutants faults nightly check coverage versions newest docs audit bench bench-quick dist release sbom image constraints lock clean

help:
	@echo "make demo         the whole way, from a classifier to a dashboard query, in 3 minutes"
	@echo "make test         the tests, real servers among them"
	@echo "make test-unit    those that start no process and open no socket; for while you write"
	@echo "make faults       faults and attacks at their nightly size: minutes, not seconds"
	@echo "make nightly      all tests at their nightly size: more examples, more of others' archives"
	@echo "make mutants      break the code, and the alerts, on purpose: which mistakes does no test see?"
	@echo "make check        format, lint, types, Prometheus rules"
	@echo "make coverage     lines and branches that the tests without servers reach, in htmlcov/"
	@echo "make versions     the tests on other Pythons, and with the oldest and newest packages"
	@echo "make newest       the newest alone, of everything, every night: what breaks, and who meets it"
	@echo "make docs         the site, in site/; warnings are errors"
	@echo "make audit        known vulnerabilities of the pinned packages"
	@echo "make bench        every benchmark beside its peers, in 40 minutes of two fast quiet cores"
	@echo "make bench-quick  those without peers to install, trimmed to 5 minutes: do they still run?"
	@echo "make dist         what a release publishes, in dist/: archives, bills of materials, checksums"
	@echo "make release      the same, of a clean commit whose version, changelog and citation agree; pushes nothing"
	@echo "make sbom         the bills of materials alone: what is in a release, as CycloneDX"
	@echo "make image        calib-serve watch in at most 250 MB, started there as root; ARGS=FILE.tar keeps it"
	@echo "make constraints  renew constraints.txt and lock/ from the newest releases"
	@echo "make lock         renew them for a changed pyproject.toml; pins stay"
	@echo "make clean        remove what these made"

setup: $(DEVELOPED)

# torch comes from pip's own sources where they have its CPU build, else from PyTorch's index. An environment of
# before may have onnxruntime-gpu, whose files onnxruntime's would overwrite.
$(INSTALLED): pyproject.toml $(wildcard lock/*.txt)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip uninstall -qq --yes onnxruntime-gpu
	$(TORCH_ALONE) || $(TORCH_ALONE) --index-url https://download.pytorch.org/whl/cpu
	$(LOCKED) -r lock/build.txt -r lock/all.txt
	$(PIP) --no-build-isolation -e .
	@touch $@

$(DEVELOPED): $(INSTALLED)
	$(LOCKED) -r lock/dev.txt
	@touch $@

demo: $(INSTALLED)
	rm -rf demo-out
	$(BIN)/python examples/demo $(ARGS)

test: $(DEVELOPED)
	VENV=$(VENV) scripts/system_tools.sh
	$(BIN)/pytest -n logical --dist loadfile --no-loadscope-reorder $(ARGS)

# No process and no socket: what computes, judges and answers. For while you write.
test-unit: $(DEVELOPED)
	$(BIN)/pytest -q -m unit -n $(shell nproc) --dist worksteal $(ARGS)

# CALIB_SERVE_DATA is needed; minutes for SAMPLE=60, a night for all of them (SAMPLE=100000).
SAMPLE ?= 60
mutants: $(DEVELOPED)
	VENV=$(VENV) scripts/system_tools.sh
	$(BIN)/python scripts/mutants/alerts.py
	$(BIN)/python scripts/mutants/code.py --sample $(SAMPLE) --jobs 2 $(ARGS)

faults: $(DEVELOPED)
	VENV=$(VENV) scripts/system_tools.sh
	CALIB_SERVE_TEST_SIZE=nightly $(BIN)/pytest -n logical --dist worksteal tests/faults tests/attacks $(ARGS)

nightly: $(DEVELOPED)
	CALIB_SERVE_TEST_SIZE=nightly VENV=$(VENV) scripts/system_tools.sh
	CALIB_SERVE_TEST_SIZE=nightly $(BIN)/pytest -n logical --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(DEVELOPED)
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target check-types check-rest

.PHONY: check-types check-rest
check-types:
	$(BIN)/mypy

check-rest:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	VENV=$(VENV) scripts/system_tools.sh
	VENV=$(VENV) scripts/check_prometheus.sh

coverage: $(DEVELOPED)
	$(BIN)/pytest -n logical --dist loadfile --no-loadscope-reorder -m "not server" \
	  --cov --cov-report=term --cov-report=xml --cov-report=html $(ARGS)

versions: $(DEVELOPED)
	VENV=$(VENV) scripts/versions.sh $(ARGS)

newest: $(DEVELOPED)
	VENV=$(VENV) scripts/versions.sh -s newest -- $(ARGS)

docs: $(DEVELOPED)
	$(BIN)/mkdocs build --strict

audit: $(DEVELOPED)
	$(BIN)/nox -s audit -- $(ARGS)

bench: $(DEVELOPED)
	VENV=$(VENV) scripts/system_tools.sh
	$(BIN)/python benchmarks/run_all.py $(ARGS)

bench-quick: $(DEVELOPED)
	VENV=$(VENV) scripts/system_tools.sh
	$(BIN)/python benchmarks/run_all.py --quick $(ARGS)

dist: $(DEVELOPED)
	VENV=$(VENV) scripts/dist.sh

release: $(DEVELOPED)
	VENV=$(VENV) scripts/release.sh $(ARGS)

sbom: $(DEVELOPED)
	VENV=$(VENV) scripts/sbom.sh

image: $(DEVELOPED)
	VENV=$(VENV) scripts/watch_image.sh $(ARGS)

constraints:
	PYTHON=$(PYTHON) scripts/refresh_constraints.sh --upgrade

lock:
	PYTHON=$(PYTHON) scripts/refresh_constraints.sh

clean:
	rm -rf $(VENV) build/mutants .nox .venv-bench-* benchmarks/results/quick demo-out site logs htmlcov coverage.xml .pytest_cache .mypy_cache .ruff_cache .hypothesis
