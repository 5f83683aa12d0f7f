"""``mssp check --layout``: is a training step on several processes here that of one device?

It starts the processes itself, which talk by gloo on this machine's CPU, and gives them a small model in float64 and a
batch whose rows divide evenly neither among processes nor in tokens.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mssp._environment import device_text, environment
from mssp.cli import progress
from mssp.planning.plans import Plan, plan
from mssp.planning.setting import Setting
from mssp.planning.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mssp.nn import GPTConfig

PROCESSES = 2
_EXPERTS, _ROWS, _CONTEXT, _VOCABULARY = 4, 4, 16, 64  # rows of each process, and one more
_ACCUMULATION, _CLIP, _LR, _WEIGHT_DECAY = 2, 0.05, 0.01, 0.1  # the norm is more than ten times that
_BALANCE, _Z = 0.01, 0.001


def run(setting: Setting, layout: str, processes: int, as_json: bool) -> int:
    """Carry out the check. The exit code is 0 if the step is the same, else 1."""
    decay = _WEIGHT_DECAY if setting.optimizer.decays else 0.0
    planned = plan(
        _shape(processes),
        scheme=setting.scheme,
        regime=setting.regime,
        optimizer=setting.optimizer,
        readout=setting.readout,
        lr=_LR,
        weight_decay=decay,
    )
    with tempfile.TemporaryDirectory() as folder:
        _start(layout, processes, planned, Path(folder))
        result: dict[str, Any] = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
    if "error" in result:
        raise ValueError(result["error"])
    if as_json:
        print(json.dumps(result["document"] | {"made_with": environment(device_text("cpu"))}, indent=1))
    else:
        lines = result["lines"]
        progress.show_lines(
            lines, emphasised=[lines[0], *(line for line in lines if line.startswith(("pass", "FAIL")))]
        )
    return 0 if result["document"]["verdict"] == "pass" else 1


def _shape(processes: int) -> Shape:
    """The smallest number of experts, at least four, that the processes divide."""
    experts = processes * -(-_EXPERTS // processes)
    return Shape(width=32, expert_width=16, experts=experts, active=experts // 2, depth=2)


def _start(layout: str, processes: int, planned: Plan, folder: Path) -> None:
    from torch.multiprocessing.spawn import spawn

    if sys.platform == "linux":  # gloo looks a host's name up, which may lead nowhere
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spawn(_process, args=(processes, layout, planned.json(), str(folder)), nprocs=processes)


def _process(rank: int, processes: int, layout: str, planned: str, folder: str) -> None:
    """One of the processes; the first writes what all of them found."""
    import torch
    import torch.distributed as dist

    from mssp.train import same_step

    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=processes)
    try:
        result = same_step(
            lambda: _model(processes),
            _batch(_ROWS * processes + 1),
            Plan.from_json(planned),
            layout=layout,
            accumulation=_ACCUMULATION,
            clip=_CLIP,
            loss=_losses,
        )
        found: dict[str, Any] = {"document": result.json(), "lines": result.lines()}
    except ValueError as error:  # which comes in all processes, as they do the same
        found = {"error": str(error)}
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def _model(processes: int) -> nn.Module:
    from mssp.nn import GPT

    return GPT(_config(processes)).double()


def _config(processes: int) -> GPTConfig:
    from mssp.nn import GPTConfig

    shape = _shape(processes)
    return GPTConfig(
        width=shape.width,
        expert_width=shape.expert_width,
        experts=shape.experts,
        active=shape.active,
        depth=shape.depth,
        vocabulary=_VOCABULARY,
        context=_CONTEXT,
        head=16,
    )


def _batch(rows: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets; fewer tokens are predicted in the later rows."""
    import torch

    tokens = torch.randint(_VOCABULARY, (rows, _CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    targets = tokens[:, 1:].clone()
    for row in range(rows // 2, rows):
        targets[row, 2 + row % 7 :] = -100
    return tokens[:, :-1], targets


def _losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    output = model(*batch)
    return {"loss": output.loss, "balance": _BALANCE * output.load_balancing_loss(), "z": _Z * output.z_loss()}
