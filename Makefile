# Every target prints the commands it runs. PYTHON is the interpreter .venv is made from (3.11 or newer).
PYTHON ?= python3
MODEL ?= bert-tiny
SIZE ?= full
ifeq ($(filter bert-tiny minilm,$(MODEL)),)
$(error MODEL is "$(MODEL)", allowed: bert-tiny, minilm)
endif
ifeq ($(filter full smoke,$(SIZE)),)
$(error SIZE is "$(SIZE)", allowed: full, smoke)
endif
PY := .venv/bin/python
# seqeval comes as source alone. pip's old way of building it, which Python 3.11's own pip takes, fetches what the build
# needs without what that needs in turn; seen failing with setuptools_scm 10.3.4.
BUILD := --use-pep517

DATA := data/quickstart-$(MODEL)
RUNS := runs/quickstart-$(MODEL)
ifeq ($(SIZE),smoke)
RUNS := runs/quickstart-$(MODEL)-smoke
PRETRAIN_ARGS := --steps 6 --global_batch 16 --micro_batch 8 --log_every 2 --eval_every 3 --eval_rows 64 --save_every 3
FINETUNE_ARGS := --max_steps 4 --seeds [0,1]
else ifeq ($(MODEL),minilm)
# Six layers, 384 wide: about twenty times BERT-tiny's work per token.
PRETRAIN_ARGS := --steps 120 --global_batch 32 --micro_batch 16 --optim.lr 3e-4 --eval_every 40 --eval_rows 128
FINETUNE_ARGS := --max_steps 60 --optim.lr 5e-5
endif

.PHONY: setup quickstart test test-slow test-gpu reliability coverage mutations lint docs
setup: .venv/.done

.venv/.done: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv || { echo "no virtual environment was made: is python3-venv installed?" >&2; exit 1; }
	$(PY) -m pip install -q -c constraints.txt torch
	$(PY) -m pip install -q -c constraints.txt $(BUILD) -e ".[dev]"
	touch $@

quickstart: setup
	$(PY) -m data_prep sample --out assets --assets enwiki,leads,$(MODEL)
	$(PY) -m data_prep build --config configs/data/quickstart.yaml --model assets/$(MODEL) --out $(DATA)
	$(PY) -m launch pretrain --config configs/pretrain/quickstart.yaml --data $(DATA)/shards --model assets/$(MODEL) \
	  --method vanilla --out $(RUNS)/pretrain/mlm $(PRETRAIN_ARGS)
	$(PY) -m launch pretrain --config configs/pretrain/quickstart.yaml --data $(DATA)/shards --model assets/$(MODEL) \
	  --method asa --out $(RUNS)/pretrain/asa $(PRETRAIN_ARGS)
	$(PY) -m pretrain export --checkpoint $(RUNS)/pretrain/mlm --out $(RUNS)/export/mlm --overwrite true
	$(PY) -m pretrain export --checkpoint $(RUNS)/pretrain/asa --out $(RUNS)/export/asa --overwrite true
	$(PY) -m launch finetune --config configs/finetune/quickstart.yaml --task.folder $(DATA)/task \
	  --models.base assets/$(MODEL) --models.mlm $(RUNS)/export/mlm --models.asa $(RUNS)/export/asa \
	  --out $(RUNS)/finetune $(FINETUNE_ARGS)
	$(PY) -m finetune report $(RUNS) --out $(RUNS)/report

# Three processes of one thread each: on two cores one of them often waits for what its test has started. A file stays
# in one, since its tests may share what took long to make.
SUITE := pytest -n 3 --dist loadfile --no-loadscope-reorder

test: setup
	OMP_NUM_THREADS=1 $(PY) -m $(SUITE)

test-slow: setup
	$(PY) -m pytest -m slow

# One GPU, the first unless told: a Trainer that sees several would copy the model to each.
test-gpu: export CUDA_VISIBLE_DEVICES ?= 0
test-gpu: setup
	$(PY) -m pytest -m gpu -rs
	$(PY) -m pytest tests/fused

reliability: setup
	$(PY) -m pytest -m reliability

# How much of asa/ its own tests run, branches counted; fails below the share that pyproject.toml names.
coverage: setup
	$(PY) -m coverage erase
	OMP_NUM_THREADS=1 $(PY) -m coverage run -m $(SUITE) tests/asa tests/contract tests/fused tests/integrations tests/precision
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

# Whether the suite notices a wrong library.
mutations: setup
	OMP_NUM_THREADS=1 $(PY) -m tests.mutations

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright

# The pages of docs/ and the library's reference; a warning is an error, also of a page that has not changed (-E).
docs: .venv/.docs
	$(PY) -m sphinx -q -E -W --keep-going -c docs . build/docs
	@echo build/docs/index.html

.venv/.docs: .venv/.done
	$(PY) -m pip install -q -c constraints.txt $(BUILD) -e ".[docs]"
	touch $@
