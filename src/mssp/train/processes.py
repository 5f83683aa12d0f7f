"""The processes of a run: how many there are, which one this is, and work that the first one does for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """How many processes train together, and the number of this one."""

    rank: int = 0
    size: int = 1

    @property
    def several(self) -> bool:
        return self.size > 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def on_first(self, work: Callable[[], None]) -> None:
        """Have the first process do something while the others wait. Where it fails, it fails on all."""
        failure: list[Any] = [None]
        if self.is_first:
            try:
                work()
            except (OSError, ValueError) as error:
                failure = [error]
        if self.several:
            described = [None if failure[0] is None else (isinstance(failure[0], OSError), str(failure[0]))]
            dist.broadcast_object_list(described, src=0)
            if described[0] is not None and not self.is_first:
                is_of_system, text = described[0]
                raise OSError(text) if is_of_system else ValueError(text)
        if failure[0] is not None:
            raise failure[0]

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.several:
            dist.all_reduce(tensor)
        return tensor

    def any(self, here: bool, device: torch.device) -> bool:
        """Whether something is so on any of the processes."""
        if not self.several:
            return here
        flag = torch.tensor(float(here), device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """The processes that ``torchrun`` started, joined while the block runs; without it, this one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
        dist.barrier()  # nobody leaves while another process still waits for its part of a sum
    finally:
        dist.destroy_process_group()


def own_device(device: torch.device) -> torch.device:
    """The GPU of this process, of those that its machine has; a CPU is for all."""
    if device.type != "cuda" or device.index is not None:
        return device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= torch.cuda.device_count():
        raise ValueError(f"there are {torch.cuda.device_count()} GPUs here for process {local}: start fewer processes")
    return torch.device("cuda", local)
