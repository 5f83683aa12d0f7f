"""Property tests draw the same examples every time, and never fail for being slow: machines are shared and noisy."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Processes share the cores: one thread for each, and for those that tests start.
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

# Contracts are test classes in the package: where one fails, pytest shows the values.
pytest.register_assert_rewrite("mssp.testing")
# Before anything imports transformers, which reads them once: no network, and none of its messages.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
# Before anything imports the kernels: without a GPU, Triton steps through them on the CPU.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_finish() -> None:
    """What is imported by now stays. The Trainer looks for garbage in every run, and need not look there."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # Triton's bindings complain at the end of what was not collected


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may read and write. Those of ``tmp_path`` are for their owner alone."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
