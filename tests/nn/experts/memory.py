"""How much memory a function takes."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator

import torch

from mssp.nn.experts.timing import Step


def peak_bytes(step: Step, device: torch.device) -> int:
    """The most memory that one run holds on top of what is there before."""
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with (
        _quiet(),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile,
    ):
        step()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        held += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, held)
    return peak


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch's profiler warns, and writes to the standard error by itself; nothing of ours does meanwhile."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
