"""How many replicas fit on a device at once."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import torch

from mssp.nn.experts.backend import runs_triton
from mssp.replicas.program import Program

_SHARE = 0.8  # of free memory: allocators and products need room of their own
_FLOAT = 4  # bytes


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        # What torch holds without using it is free to us.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    try:  # what can be had without swapping: caches are given up for it
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def bytes_per_replica(program: Program, optimizer: str, batch: int, device: torch.device) -> int:
    """Parameters, moments, gradients and activations of one replica in training."""
    sizes = [torch.Size(shape).numel() for shape in program.shapes.values()]
    copies = 1 if optimizer == "sgd" else 3
    floats = copies * sum(sizes) + batch * program.floats_per_example()
    if not runs_triton(device.type, torch.float32):
        floats += sum(sizes) + 2 * max(sizes)  # gradients, and what elementwise operations leave between them
    return floats * _FLOAT


def replicas_that_fit(program: Program, optimizer: str, batch: int, device: torch.device) -> int:
    each = bytes_per_replica(program, optimizer, batch, device)
    fitting = int(_SHARE * free_bytes(device) // each)
    if not fitting:
        gib = each / 2**30
        raise ValueError(f"one replica needs {gib:.1f} GiB, and {device} has {free_bytes(device) / 2**30:.1f} free")
    return fitting


def examples_that_fit(program: Program, replicas: int, device: torch.device) -> int:
    """How many examples all replicas can be evaluated on at once."""
    return max(1, int(_SHARE / 2 * free_bytes(device) // (replicas * program.floats_per_example() * _FLOAT)))


def even_parts(count: int, largest: int) -> list[slice]:
    """``count`` things in as few parts of nearly equal size as ``largest`` allows.

    >>> even_parts(10, 4)
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    parts = -(-count // largest)
    ends = [-(-count * part // parts) for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]
