"""A sharded model gets the values of the unsharded one: four processes, gloo, CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import mssp
from own_transformer import CLAIMS, Transformer, batch
from tests.ranks import check_on_ranks

RANKS = 4
# Five experts on four ranks: parts of 2, 2, 1 and 0.
SHAPE = mssp.Shape(width=32, expert_width=6, experts=5, active=5, depth=2)


def plans() -> list[mssp.Plan]:
    return [mssp.plan(SHAPE, regime="III", scheme=scheme, lr=0.1, readout="mup") for scheme in ("mssp", "mup")]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_same(sharded: nn.Module, plan: mssp.Plan) -> None:
    reference = Transformer(plan)
    mssp.initialize(reference, plan, CLAIMS, seed=5)
    for (name, expected), actual in zip(reference.named_parameters(), sharded.parameters(), strict=True):
        assert torch.equal(whole(actual).detach(), expected.detach()), name


def sharded_by_fsdp(plan: mssp.Plan) -> nn.Module:
    """The order of real training scripts: meta, shard, materialise, initialize."""
    mesh = init_device_mesh("cpu", (RANKS,))
    with torch.device("meta"):
        model = Transformer(plan)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    return model


def check_fsdp() -> None:
    for plan in plans():
        model = sharded_by_fsdp(plan)
        mssp.initialize(model, plan, CLAIMS, seed=5)
        assert_same(model, plan)
        optimizer = torch.optim.AdamW(mssp.param_groups(model, plan, CLAIMS))
        mssp.verify(model, optimizer, plan, CLAIMS)
        tokens, following = batch(0, size=4)
        F.cross_entropy(model(tokens).flatten(0, 1), following.flatten()).backward()
        optimizer.step()


def check_ddp() -> None:
    for plan in plans():
        model = DistributedDataParallel(Transformer(plan))
        mssp.initialize(model, plan, CLAIMS, seed=5)
        assert_same(model, plan)


def check_placements() -> None:
    """Every axis, two axes at once, and replicas."""
    flat, square = init_device_mesh("cpu", (RANKS,)), init_device_mesh("cpu", (2, RANKS // 2))
    cases: list[tuple[DeviceMesh, tuple[Placement, ...]]] = [(flat, (Shard(axis),)) for axis in range(3)]
    cases += [(flat, (Replicate(),))]
    cases += [(square, (Shard(0), Shard(1))), (square, (Replicate(), Shard(0))), (square, (Shard(0), Shard(0)))]
    info = mssp.ParamInfo("expert_in", layout="out in", expert_axis=0)
    for plan in plans():
        single = nn.Module()
        single.register_parameter("w", nn.Parameter(torch.empty(5, 6, 32)))
        mssp.initialize(single, plan, {"w": info}, seed=5)
        for mesh, placements in cases:
            split = nn.Module()
            split.register_parameter("w", nn.Parameter(distribute_tensor(torch.zeros(5, 6, 32), mesh, placements)))
            mssp.initialize(split, plan, {"w": info}, seed=5)
            assert torch.equal(whole(split.get_parameter("w")), single.get_parameter("w")), placements


def check_padding() -> None:
    """The row that stands for padding is on one of the ranks, in part on each, or in the part that torch cuts."""
    plan, claims = plans()[0], {"weight": mssp.ParamInfo("embedding", layout="vocab out")}
    flat, square = init_device_mesh("cpu", (RANKS,)), init_device_mesh("cpu", (2, RANKS // 2))
    single = nn.Embedding(10, 32, padding_idx=7)
    mssp.initialize(single, plan, claims, seed=5)
    assert [row for row in range(10) if not single.weight[row].any()] == [7]
    cases = [(flat, (Shard(0),)), (flat, (Shard(1),)), (flat, (Replicate(),)), (square, (Shard(1), Shard(0)))]
    for mesh, placements in cases:
        split = nn.Embedding(10, 32, padding_idx=7)
        split.weight = nn.Parameter(distribute_tensor(torch.zeros(10, 32), mesh, placements))
        mssp.initialize(split, plan, claims, seed=5)
        assert torch.equal(whole(split.weight), single.weight), placements


def check_fsdp_over_tensor_parallel() -> None:
    """Both on one axis: a placement that is cut by torch, not by us."""
    mesh = init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=("data", "tensor"))
    claims = {"0.weight": mssp.ParamInfo("readout", layout="out in")}
    for plan in plans():
        split, single = (nn.Sequential(nn.Linear(32, 10, bias=False)) for _ in range(2))
        parallelize_module(split, mesh["tensor"], {"0": ColwiseParallel()})
        fully_shard(split, mesh=mesh["data"])
        [weight] = split.parameters()
        assert isinstance(weight, DTensor)
        assert any(type(placement) not in (Shard, Replicate) for placement in weight.placements)
        mssp.initialize(split, plan, claims, seed=5)
        mssp.initialize(single, plan, claims, seed=5)
        assert torch.equal(whole(weight).detach(), next(single.parameters()).detach())


@pytest.mark.slow
def test_sharding_does_not_change_the_values(tmp_path: Path) -> None:
    check_on_ranks(
        RANKS, tmp_path, check_placements, check_padding, check_ddp, check_fsdp, check_fsdp_over_tensor_parallel
    )
