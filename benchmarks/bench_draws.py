"""How fast initial weights are drawn: normals by threads, and a whole model by ``mssp.initialize``.

    ./dev bench draws                        # 2^26 normals with one thread, two, four, ..., and a model of experts
    ./dev bench draws --numbers 1000000000   # a model of so many numbers

The model has experts of its own (muP): every number is drawn. Under MSSP one expert of each layer is drawn, and copied.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
from torch import nn

import mssp
from mssp.apply.random_numbers import normals

_WIDTH, _EXPERTS = 1024, 8
_THREADS = "OMP_NUM_THREADS"


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def experts(numbers: int) -> nn.ModuleDict:
    """Stacks of experts with about so many numbers in all."""
    stack = _EXPERTS * _WIDTH * _WIDTH
    layers = max(1, numbers // stack)
    return nn.ModuleDict({str(layer): _Stack() for layer in range(layers)})


class _Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(_EXPERTS, _WIDTH, _WIDTH))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, default=2**28, help="in the model")
    parser.add_argument("--normals", type=int, default=2**26)
    asked = parser.parse_args()
    usual, threads = os.environ.get(_THREADS), 1
    while threads <= (os.cpu_count() or 1):
        os.environ[_THREADS] = str(threads)
        normals(0, "warm", 0, 2**20)
        rate = asked.normals / seconds(lambda: normals(0, "weight", 0, asked.normals))
        print(f"{threads:3d} threads  {rate / 1e6:8.0f} million normals per second, 30 billion in {3e10 / rate:6.0f} s")
        threads *= 2
    os.environ.pop(_THREADS)
    os.environ.update({} if usual is None else {_THREADS: usual})
    model = experts(asked.numbers)
    shape = mssp.Shape(width=_WIDTH, expert_width=_WIDTH, experts=_EXPERTS, active=_EXPERTS, depth=1)
    claims = {"*.weight": mssp.ParamInfo("expert_in", layout="out in", expert_axis=0)}
    count = sum(parameter.numel() for parameter in model.parameters())
    for scheme in ("mup", "mssp"):
        plan = mssp.plan(shape, regime="III", scheme=scheme, lr=1e-3)
        mssp.initialize(model, plan, claims)  # the first time memory comes from the system
        start = time.perf_counter()
        mssp.initialize(model, plan, claims)
        rate = count / (time.perf_counter() - start)
        print(f"{scheme}: {count:,} numbers, {rate / 1e6:.0f} million per second, 30 billion in {3e10 / rate:.0f} s")


if __name__ == "__main__":
    main()
