"""Without a GPU, Triton's kernels run in its interpreter, which has to be chosen before Triton is first imported."""

import gc
import os
import sys
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from hypothesis import settings

from asa import dist

# Tests never time: a busy machine would fail an example that takes longer than it did before.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


FEW = 100  # modules
looked_at = 0


def pytest_runtest_setup() -> None:
    """What has been imported stays: a run and a Trainer look for garbage when they end, for 0.1 to 0.3 s among all of
    that."""
    global looked_at
    if len(sys.modules) > looked_at + FEW:
        gc.collect()
        gc.freeze()
        looked_at = len(sys.modules)


@pytest.fixture(autouse=True)
def environment_as_it_was() -> Iterator[None]:
    """Commands set variables of their process, which here goes on to other tests: one that finds LOCAL_RANK takes
    itself for one of several processes."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    """A group for the tests of a file. DeepSpeed keeps the first that it sees, until it destroys it itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        patch.setenv("LOCAL_RANK", "0")
        dist.init(cuda=False, launched=False)
        yield
        import deepspeed.comm  # not before DS_ACCELERATOR is set

        if deepspeed.comm.is_initialized():
            deepspeed.comm.destroy_process_group()
        dist.close()
