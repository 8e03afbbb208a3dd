# make venv | demo | test | test-all | docs | mutants | lint | lock
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
COUNT ?= 40

.PHONY: venv demo test test-all tests docs mutants lint lock clean
.DEFAULT_GOAL := test

venv: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@echo "== building $(VENV) (about a minute the first time)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: venv
	@mkdir -p demo
	@echo "== making a BERT-like model"
	$(BIN)/python examples/bert.py demo/bert.onnx
	@echo "== compiling it for this machine's CPU"
	$(BIN)/mcfuser compile demo/bert.onnx -o demo/out --device cpu
	@echo "== running it beside onnxruntime"
	$(BIN)/mcfuser run demo/out --check demo/bert.onnx

# at once: the checks keep one core busy; three processes, since many tests wait for others
test: venv
	@$(MAKE) --no-print-directory --jobs 2 lint tests TIER="not thorough"

test-all: venv
	@$(MAKE) --no-print-directory --jobs 2 lint tests

# hundreds of processes read what the first of them has compiled; one that dies fails, and is not
# started again with the same test
tests: export PYTHONDONTWRITEBYTECODE =
tests: venv
	@echo "== tests"
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder \
		--max-worker-restart 0 -m "$(TIER)"

docs: venv
	@echo "== printing anew what docs/architecture.md shows"
	$(BIN)/python docs/architecture.py

mutants: venv
	@echo "== mutants, each judged by the tests of its module and of its room"
	$(BIN)/python -m tests.mutation --seed $(SEED) --count $(COUNT)

lint: venv
	@echo "== ruff and mypy"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lock:
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --all-extras pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) demo
