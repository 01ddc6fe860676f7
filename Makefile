# Two commands do everything: `make demo` and `make test`. Both make .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Only errors: nobody needs to be told that pip has a newer version, or runs as root in a container.
PIP := $(BIN)/pip install --quiet --quiet --disable-pip-version-check --no-warn-script-location --root-user-action=ignore
# One thread per process: small tensors on many threads cost more than they gain, and tests run two at a time.
export OMP_NUM_THREADS := 1
# Bytecode is kept, whatever the shell says: without it every process of the tests compiles the tree again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-full lint house bench peers drill docs site picture notebooks setup clean

demo: $(VENV)/.assay
	@$(BIN)/assay demo
	@echo "For the assay command itself: source $(BIN)/activate"

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

test-full: lint
	$(BIN)/pytest -n 2 --dist worksteal -m "slow or not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks drills docs notebooks tools
	$(BIN)/ruff format --check src tests benchmarks drills docs notebooks tools
	$(BIN)/mypy
	$(BIN)/lint-imports

# What benchmarks share, scripts that make a store or a text for one of them, and one that needs SAELens (`make peers`).
BENCH_HELPERS := %/measuring.py %/device_time.py %/worker.py %/stored.py %/debian_text.py %/saelens.py
# What a reader must open to follow each command, beside what others have; `tools/house.py --compute` trains a card too.
house: $(VENV)/.assay
	$(BIN)/python tools/house.py

bench: $(VENV)/.assay
	missed=0; for script in $(filter-out $(BENCH_HELPERS),$(sort $(wildcard benchmarks/*.py))); do \
	  $(BIN)/python $$script || missed=1; done; exit $$missed

# SAELens itself, in an environment of its own: writes tests/golden, then compares on raw activations of SmolLM2-135M
# (`assay data pull smollm2-135m` first). The tests compare with what is in tests/golden, and do not need it.
PEERS := .venv-peers/bin
peers: .venv-peers/.saelens
	PYTHONPATH=src $(PEERS)/python tests/golden/make_saelens.py
	PYTHONPATH=src $(PEERS)/python benchmarks/saelens.py

.venv-peers/.saelens:
	test -x $(PEERS)/python || $(PYTHON) -m venv .venv-peers
	$(PEERS)/pip install --quiet 'torch>=2.6,<2.14' sae-lens==6.54.12 scikit-learn gguf
	touch $@

# Faults on the real command: kills, full disks, damaged records, lost nodes. 45 minutes on two busy cores;
# `make drill DRILL="--seed 1 --at-once 4"` draws other moments, and has more drills at the same time.
drill: $(VENV)/.dev
	$(BIN)/python drills/run.py --into docs/reliability.md $(DRILL)

docs: $(VENV)/.assay
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python docs/refresh.py
	$(BIN)/python docs/masks_perplexity.py
	$(BIN)/python docs/methods_perplexity.py
	$(BIN)/python docs/methods_card.py
	$(BIN)/python docs/texts_perplexity.py
	$(BIN)/python docs/layers_icl.py
	$(BIN)/python docs/capacity_icl.py
	$(BIN)/python docs/longer_icl.py
	$(BIN)/python docs/zoology_icl.py
	$(BIN)/python docs/reflections_icl.py
	$(BIN)/python docs/dictionary_sae.py
	$(BIN)/python docs/concepts_sae.py
	$(BIN)/python docs/stream_sae.py
	$(BIN)/python docs/widths_modular.py
	$(BIN)/python docs/coming_from.py

# The documentation as a site, in build/site; its generator needs nothing of assay.
site: .venv-site/.sphinx
	.venv-site/bin/sphinx-build --quiet --fail-on-warning docs build/site
	@echo "build/site/index.html"

.venv-site/.sphinx:
	test -x .venv-site/bin/python || $(PYTHON) -m venv .venv-site
	.venv-site/bin/pip install --quiet 'sphinx>=9,<10' 'myst-parser>=5,<6' furo
	touch $@

# The first screens of cards for the README and docs/card.md, in Chromium.
picture: $(VENV)/.dev
	$(BIN)/python docs/picture.py

# The tutorials are Python files; Jupyter wants its own.
notebooks: $(VENV)/.dev
	$(BIN)/jupytext --to ipynb notebooks/*/*.py

setup: $(VENV)/.dev

# One pip command for the project and its extras, so that nothing pulls a second torch.
$(VENV)/.assay: pyproject.toml
	@echo "Setting up $(VENV), once: a few minutes, most of them for torch."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[lm]'
	@touch $@

$(VENV)/.dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.assay

clean:
	rm -rf $(VENV) results
