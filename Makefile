# make course      set up if needed, put your copies in work/, open JupyterLab there     PORT=8890 IP=0.0.0.0
#                  WORK=~/rank-by-rank: copies there, in a home or on a USB stick; this folder may then be read-only
#                  OUTPUTS=1: the copies show the cells' outputs, for a projector; without it they ask for a guess first
#                  LANGUAGE=zh: copies, errors, explorers, hints and quiz speak Chinese (中文) from now on; LANGUAGE=en: English
# make quiz        interview questions in the terminal                                   ARGS="--lang zh --mock"
# make test        set up if needed, then every check and every test but the slow ones     ONLY=zero: one topic, in a minute
# make test-slow   the slow tests, at most an hour, with a table; run again to go on   SEED=0
#                  then every strategy on practice cards
# make test-gpu    the tests that need an NVIDIA GPU
# make test-torch  tests with the newest torch, which .venv keeps out     ONLY=ranks VERSION=2.13.0
# make bench       compare with PyTorch's own engines, tables in benchmarks/results/   ONLY=ranks
# make check       the quick checks: ruff, import-linter, tidy notebooks, labs up to date
# make book        build the web edition in book/, which any web server can serve        SERVE=1: serve it on this machine
# make labs        build labs/ from solutions/, after you change a solution
# make notebooks   run every chapter again and save it                                   ONLY=notebooks/03_ddp.ipynb
# make pictures    make the pictures of README and docs/ again, from runs on this machine
# make links       write badges and the ways to Colab, Binder and the book      REPO=owner/name BRANCH=main BOOK=https://…
#                  into README and the first cells of chapters 00 and 08; without REPO: remove them again
# make wheelhouse  download everything once, for rooms without internet
#
# PYTHON=python3.12            which Python makes .venv (3.11 or newer)
# TORCH=cpu|cuda|auto          which build of torch; auto looks for an NVIDIA GPU
# TORCH_CPU_INDEX=URL          a mirror of PyTorch's CPU index
# WORKERS=2                    how many processes share the tests; each has its own four ranks; 0: one process
# SYSTEM=1                     use PYTHON as it is, install nothing (a JupyterHub sets this by itself)

PYTHON ?= python3
TORCH ?= auto
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PORT ?=
IP ?=
# Not from the environment: clusters set a WORK and a VERSION of their own, and CI a BRANCH.
WORK :=
VERSION :=
OUTPUTS :=
SERVE :=
REPO :=
BRANCH := main
BOOK :=
ONLY ?=
ARGS ?=
SEED ?= 0

STAMP := .venv/.installed
CLASS_STAMP := .venv/.installed-class
BOOK_STAMP := .venv/.installed-book
WORKERS ?= 2
IN_HUB := $(strip $(JUPYTERHUB_USER)$(JUPYTERHUB_API_URL)$(JUPYTERHUB_SERVICE_PREFIX))

ifneq ($(IN_HUB),)
SYSTEM := 1
endif
ifdef SYSTEM
PY := $(PYTHON)
READY :=
READY_FOR_BOOK :=
READY_TO_TEST :=
else
PY := .venv/bin/python
READY := $(STAMP)
READY_FOR_BOOK := $(BOOK_STAMP)
READY_TO_TEST := $(CLASS_STAMP) $(BOOK_STAMP)
endif

# Not from the environment, where LANGUAGE is gettext's and may be "de:en".
ifeq ($(origin LANGUAGE),command line)
CHOSEN := --language '$(LANGUAGE)'
endif
ifneq ($(filter-out 0,$(OUTPUTS)),)
SHOWN := --outputs
endif
# The tests and what they compare with are in English, whatever the one who runs them reads.
test test-slow test-gpu notebooks pictures: export RANKS_LANGUAGE := en

.PHONY: help course quiz test test-slow test-gpu test-torch bench book check labs notebooks pictures links wheelhouse doctor

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

$(STAMP): pyproject.toml constraints.txt tools/install.py
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "Set-up stopped. There is no $(PYTHON) here: install Python 3.11 or newer, or name yours with PYTHON=."; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Set-up stopped. This is Python %d.%d and the course needs 3.11 or newer: install one and name it, for example make course PYTHON=python3.12." % v[:2])'
	@$(PYTHON) tools/install.py --torch '$(TORCH)' --cpu-index '$(TORCH_CPU_INDEX)'

$(CLASS_STAMP): $(STAMP)
	@$(PYTHON) tools/install.py --torch '$(TORCH)' --cpu-index '$(TORCH_CPU_INDEX)' --extra class

$(BOOK_STAMP): $(STAMP)
	@$(PYTHON) tools/install.py --torch '$(TORCH)' --cpu-index '$(TORCH_CPU_INDEX)' --extra book

course: $(READY)
	@$(PY) tools/lay_course.py --work '$(WORK)' $(CHOSEN) $(SHOWN)
	@$(PY) tools/open_lab.py --work '$(WORK)' --port '$(PORT)' --ip '$(IP)'

quiz: $(READY)
	@$(PY) tools/own_folder.py '$(WORK)' $(PY) -m helpers quiz $(ARGS)

doctor: $(READY)
	@$(PY) -m helpers doctor

check: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -c 'from importlinter.cli import lint_imports_command as lint; lint()' --no-logo
	@$(PY) tools/tidy_notebooks.py --check
	@$(PY) tools/refresh_outputs.py --check
	@$(PY) tools/build_labs.py --check
	@$(PY) tools/build_strategies_page.py --check
	@$(PY) tools/translate.py --pairs $$(cat tools/translated_at.txt)
	@$(PY) tools/package_report.py

# Two workers share the tests, a file at a time. Where there is a browser, each chapter runs in it, once, and its outputs
# are compared with the saved ones; elsewhere nbval does both.
NBVAL := notebooks --nbval --nbval-current-env --nbval-sanitize-with tests/nbval_sanitize.cfg --nbval-cell-timeout 120

ifeq ($(ONLY),)
test: check $(READY_TO_TEST)
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10 \
	  tests $$($(PY) -m tests.browser.chromium || echo '$(NBVAL)')
else
test: $(READY)
	@$(PY) -m pytest -q -p tests.only --only '$(ONLY)' -n $(WORKERS) --dist worksteal
endif

# Every strategy, the composition and the collectives on practice cards, by NCCL's rules: benchmarks/results/on_cards.md.
# Last tests/gpu, in a process that has a card of its own.
ON_CARDS := tests/parallel tests/compose tests/test_collectives.py

test-slow: $(READY_TO_TEST)
	@$(PY) -m pytest -p tests.slow_table -m slow --seed '$(SEED)' --durations=10
	@$(PY) -m pytest -q --device card $(ON_CARDS)
	@$(PY) -m pytest -q --device card tests/gpu

test-gpu: $(READY)
	@$(PY) -m pytest tests/gpu -m gpu

test-torch: $(READY)
	@$(PY) tools/try_torch.py --only '$(or $(ONLY),ranks)' --version '$(VERSION)' --cpu-index '$(TORCH_CPU_INDEX)' --workers '$(WORKERS)'

bench: $(READY)
	@$(PY) -m benchmarks $(ONLY)

book: $(READY_FOR_BOOK)
	@$(PY) tools/book/build.py $(if $(filter-out 0,$(SERVE)),--serve)

labs: $(READY)
	@$(PY) tools/build_labs.py

notebooks: $(READY)
	@$(PY) tools/run_notebooks.py $(ONLY)
	@$(PY) tools/build_strategies_page.py

pictures: $(READY)
	@$(PY) tools/pictures.py

links: $(READY)
	@$(PY) tools/links.py --repo '$(REPO)' --branch '$(BRANCH)' --book '$(BOOK)'

wheelhouse: $(READY)
	@$(PY) tools/wheelhouse.py --torch '$(TORCH)' --cpu-index '$(TORCH_CPU_INDEX)'
