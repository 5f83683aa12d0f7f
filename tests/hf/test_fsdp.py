"""Sharded models of transformers, accelerate, and a batch on several processes: two of them, gloo, CPU."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

import mssp
import mssp.hf
from mssp.apply.groups import optimizer_for
from mssp.hf.factors import FACTOR_ATTRIBUTE
from mssp.hf.meta import on_meta
from mssp.train import spread
from tests.hf.test_batch_parts import check_parts_on_ranks
from tests.hf.tiny_models import config_of, initialized, model_of, plan_of, tokens
from tests.ranks import check_on_ranks

RANKS = 2
BASE = mssp.Shape(width=32, expert_width=16, experts=3, active=1, depth=1)
# Three times three experts on two ranks, so that their parts are unequal.
TARGET = mssp.Shape(width=64, expert_width=32, experts=9, active=3, depth=2)


def plan(scheme: str = "mssp", **changes: Any) -> mssp.Plan:
    return plan_of(TARGET, BASE, scheme=scheme, readout="mup", aggregation_mult=1.5, lr=1e-2, **changes)


def adapted() -> nn.Module:
    model = model_of(config_of("olmoe", TARGET))
    mssp.hf.adapt(model, base=config_of("olmoe", BASE))
    return model


def shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (RANKS,))
    layers = model.get_submodule("model.layers")
    assert isinstance(layers, nn.ModuleList)
    for block in layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    return model


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def assert_same(sharded: nn.Module, reference: nn.Module, tolerance: float = 0.0) -> None:
    pairs = zip(sharded.named_parameters(), reference.named_parameters(), strict=True)
    for (name, tensor), (same_name, expected) in pairs:
        assert name == same_name
        assert torch.allclose(whole(tensor), expected.detach(), rtol=tolerance, atol=tolerance * 1e-2), name


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> Tensor:
    """The loss after a few steps; all ranks have the same batch, so that the mean of gradients is one process's."""
    for step in range(steps):
        batch = tokens(step)
        loss: Tensor = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


def check_initial_weights() -> None:
    for scheme in ("mssp", "mup"):
        reference = initialized(adapted(), plan(scheme))
        before = shard(initialized(adapted(), plan(scheme)))
        after = initialized(shard(adapted()), plan(scheme))
        for sharded in (before, after):
            assert_same(sharded, reference)
            for name, parameter in sharded.named_parameters():
                if ".experts." in name:
                    first, *others = whole(parameter)
                    assert [torch.equal(one, first) for one in others] == [scheme == "mssp"] * 8, name


def check_meta() -> None:
    """The order of large models: meta, shard, memory, initialize; with a frozen bias of the router, and frequencies."""
    config, base = (config_of("afmoe", shape, num_dense_layers=0) for shape in (TARGET, BASE))
    reference = model_of(config)
    mssp.hf.adapt(reference, base=base)
    initialized(reference, plan())
    model = shard(on_meta(config))
    mssp.hf.adapt(model, base=base)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(7.0)
    initialized(model, plan())
    assert_same(model, reference)
    for name, buffer in reference.named_buffers():
        assert torch.equal(whole(model.get_buffer(name)), buffer), name
    mssp.verify(model, optimizer_for(model, plan()), plan())
    in_one_call = mssp.hf.from_config(config, plan(gates_sum_to_one=True), base=base, shard=shard)
    assert_same(in_one_call, reference)
    with torch.no_grad():
        assert torch.allclose(in_one_call.eval()(tokens()).logits, reference(tokens()).logits, rtol=1e-5, atol=1e-6)


def check_forward_pass() -> None:
    reference = initialized(adapted(), plan("mup"))
    sharded = shard(initialized(adapted(), plan("mup")))
    factors = sorted(vars(module)[FACTOR_ATTRIBUTE] for module in sharded.modules() if FACTOR_ATTRIBUTE in vars(module))
    assert factors == [0.5] * 4 + [1.5] * 2
    with torch.no_grad():
        expected = reference(tokens()).logits
        assert torch.allclose(sharded(tokens()).logits, expected, rtol=1e-5, atol=1e-6)
        for module in reference.modules():
            if FACTOR_ATTRIBUTE in vars(module):
                setattr(module, FACTOR_ATTRIBUTE, 1.0)
        assert not torch.allclose(reference(tokens()).logits, expected, rtol=1e-2)


def check_steps() -> None:
    """With an eps so large that it matters, and gradients that are scaled instead."""
    reference = initialized(adapted(), plan("mup", eps=1e-4))
    expected = stepped(reference, optimizer_for(reference, plan("mup", eps=1e-4)))
    for grad_scale in (False, True):
        chosen = plan("mup", eps=1e-4, grad_scale=grad_scale)
        sharded = shard(initialized(adapted(), chosen))
        optimizer = optimizer_for(sharded, chosen)
        assert torch.allclose(stepped(sharded, optimizer), expected, rtol=1e-4)
        assert_same(sharded, reference, tolerance=1e-3)
        mssp.verify(sharded, optimizer, chosen)


def check_accelerate() -> None:
    """The way of accelerate's FSDP2: groups are made of whole parameters, which it then puts sharded ones in place of.

    It takes that way for accelerators alone, and on a CPU makes DDP of the same plugin: so it is called by name.
    """
    chosen = plan("mup", grad_scale=True)
    reference = initialized(adapted(), chosen)
    expected = stepped(reference, optimizer_for(reference, chosen))
    model = initialized(adapted(), chosen)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # which accelerate would set itself, with a warning
    accelerator = Accelerator(cpu=True)
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["OlmoeDecoderLayer"]
    )
    prepared, wrapped = accelerator._prepare_fsdp2(model, optimizer_for(model, chosen))
    assert isinstance(model, FSDPModule)  # in place
    assert all(isinstance(parameter, DTensor) for group in wrapped.param_groups for parameter in group["params"])
    assert {group["name"] for group in wrapped.param_groups} >= {"router", "expert_in", "expert_out", "readout"}
    mssp.verify(prepared, wrapped.optimizer, chosen)
    assert torch.allclose(stepped(prepared, wrapped), expected, rtol=1e-4)
    assert_same(prepared, reference, tolerance=1e-3)


def check_layouts() -> None:
    """A step under every layout of ours, with five rows, and experts that travel by the code of transformers."""
    base, target = replace(BASE, experts=4, active=2), replace(TARGET, experts=8, active=4)
    chosen = plan_of(target, base, aggregation_mult=1.5, lr=1e-2)

    def build() -> nn.Module:
        model = model_of(config_of("olmoe", target))
        mssp.hf.adapt(model, base=config_of("olmoe", base))
        return model

    for layout in ("ddp", "fsdp", "ep"):
        result = mssp.same_step(build, tokens(batch=5), chosen, layout=layout, accumulation=2, clip=0.1)
        assert result.passed, result
        assert result.causes == ()
    with pytest.raises(ValueError, match=r"^layout ep needs a number of experts that 2 processes divide, got 9$"):
        spread(adapted(), "ep")


@pytest.mark.slow
def test_several_processes_change_nothing(tmp_path: Path) -> None:
    check_on_ranks(
        RANKS,
        tmp_path,
        check_initial_weights,
        check_meta,
        check_forward_pass,
        check_steps,
        check_parts_on_ranks,
        check_accelerate,
        check_layouts,
    )


@pytest.mark.parametrize("order", ["model first", "optimizer first"])
def test_accelerate_keeps_groups_and_factors(order: str) -> None:
    chosen = plan("mup", grad_scale=True)
    model = initialized(adapted(), chosen)
    reference = copy.deepcopy(model)
    expected = stepped(reference, optimizer_for(reference, chosen))
    try:
        accelerator = Accelerator(cpu=True)
        optimizer = optimizer_for(model, chosen)
        if order == "model first":
            prepared, wrapped = accelerator.prepare(model, optimizer)
        else:
            wrapped, prepared = accelerator.prepare(optimizer, model)
        mssp.verify(prepared, wrapped.optimizer, chosen)
        mssp.check_schedule(wrapped, chosen)
        assert torch.equal(stepped(prepared, wrapped), expected)
        assert_same(prepared, reference)
    finally:  # accelerate has one state in a process
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        PartialState._reset_state()
