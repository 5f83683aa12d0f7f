"""Checks that several processes make together, over gloo on the CPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def check_on_ranks(
    ranks: int, folder: Path, *checks: Callable[[], None], on_two: Sequence[Callable[[], None]] = ()
) -> None:
    """Run functions of a module, one after the other, in every process of a group; all of them have to end well.

    ``on_two`` are run afterwards in a group of the first two: processes are slow to start.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spawn(_rank, args=(ranks, str(folder), checks, on_two), nprocs=ranks)
    assert sorted(path.name for path in folder.glob("passed-*")) == [f"passed-{rank}" for rank in range(ranks)]


def _rank(
    rank: int, ranks: int, folder: str, checks: Sequence[Callable[[], None]], on_two: Sequence[Callable[[], None]]
) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", module="torch")
    torch.set_num_threads(1)
    _check_in_group(rank, ranks, folder, checks)
    if on_two and rank < 2:
        _check_in_group(rank, 2, folder, on_two)
    Path(folder, f"passed-{rank}").touch()
    os._exit(0)  # everything is checked and noted, and threads of gloo sometimes abort a process that exits


def _check_in_group(rank: int, ranks: int, folder: str, checks: Sequence[Callable[[], None]]) -> None:
    # What accelerate asks of a launcher.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-of-{ranks}", rank=rank, world_size=ranks)
    try:
        for check in checks:
            check()
        dist.barrier()  # nobody leaves while another process still waits for its part of a sum
    finally:
        dist.destroy_process_group()
