# Each target sets up what it needs in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# The torch to install. The default is what the tests were run with; on a GPU machine choose the
# build that fits its driver, for example
#   make setup TORCH="torch==2.11.0" TORCH_ARGS="--index-url <the wheel index of your CUDA build>"
TORCH      ?= torch==2.13.0
TORCH_ARGS ?=

.PHONY: setup demo test test-fast test-gpu lint format type golden bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "beam-trt needs Python 3.11 or newer; try: make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt $(TORCH_ARGS) "$(TORCH)"
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	mkdir -p $(VENV)/typing && ln -sfn $(CURDIR)/plugins $(VENV)/typing/beam_trt_plugins
	touch $@

demo: $(STAMP)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/demo.py

test: lint type
	$(BIN)/pytest

test-fast: $(STAMP)
	$(BIN)/pytest -m "not slow"

test-gpu: $(STAMP)
	$(BIN)/pytest -m gpu

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(STAMP)
	$(BIN)/mypy beam_trt plugins tools

golden: $(STAMP)
	$(BIN)/pytest tests/golden --rewrite-golden

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache demo-run
