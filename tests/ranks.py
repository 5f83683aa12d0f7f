"""Checks that several processes make together, over gloo on the CPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def check_on_ranks(ranks: int, folder: Path, *checks: Callable[[], None]) -> None:
    """Run functions of a module, one after the other, in every process of a group; all of them have to end well."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spawn(_rank, args=(ranks, str(folder), checks), nprocs=ranks)
    assert sorted(path.name for path in folder.glob("passed-*")) == [f"passed-{rank}" for rank in range(ranks)]


def _rank(rank: int, ranks: int, folder: str, checks: Sequence[Callable[[], None]]) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", module="torch")
    torch.set_num_threads(1)
    # What accelerate asks of a launcher.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    try:
        for check in checks:
            check()
        dist.barrier()  # nobody leaves while another process still waits for its part of a sum
        Path(folder, f"passed-{rank}").touch()
    finally:
        dist.destroy_process_group()
    os._exit(0)  # everything is checked and noted, and threads of gloo sometimes abort a process that exits
