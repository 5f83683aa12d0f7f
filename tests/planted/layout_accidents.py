"""Accidents of training on several processes, as training scripts have them: the same step under them is another one.

Every accident is a step as its author would write it, of ``step(model, optimizer, batch)``: it takes this process's
rows, makes gradients, clips, and steps. ``ACCIDENTS`` has them by name, with what lays the model on the processes
before, a part of the sentence by which it has to be named, and the roles whose gradients it has to find off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from mssp.train.expert_parallel import divide_experts

CLIP = 0.05
BALANCE, Z = 0.01, 0.001
MICRO_BATCHES = 2
Batch = tuple[Tensor, Tensor]


class Accident(NamedTuple):
    step: Callable[[nn.Module, Optimizer, Batch], Any]
    spread: Callable[[nn.Module], nn.Module]
    cause: str
    off: str  # the roles whose gradients are off


def own_rows(batch: Batch) -> Batch:
    tokens, targets = (tensor.tensor_split(dist.get_world_size())[dist.get_rank()] for tensor in batch)
    return tokens, targets


def micro_batches(batch: Batch) -> Iterator[Batch]:
    yield from zip(*(tensor.tensor_split(MICRO_BATCHES) for tensor in own_rows(batch)), strict=True)


def gradients(model: nn.Module) -> Iterator[Tensor]:
    for parameter in model.parameters():
        assert parameter.grad is not None
        yield parameter.grad


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_experts_and_fsdp(model: nn.Module) -> nn.Module:
    """Experts are divided by hand, and FSDP2 averages the gradients of all else, as it does by default."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    experts = divide_experts(model, mesh)
    blocks = model.blocks
    assert isinstance(blocks, nn.ModuleList)
    for block in blocks:
        fully_shard(block, mesh=mesh, ignored_params=experts)
    fully_shard(model, mesh=mesh, ignored_params=experts)
    return model


def averaging_experts(model: nn.Module) -> None:
    """What is right beside FSDP2's mean: experts have the sum over the tokens of all processes."""
    for gradient in gradients_of_experts(model):
        gradient.div_(dist.get_world_size())


def gradients_of_experts(model: nn.Module) -> list[Tensor]:
    named = [parameter.grad for name, parameter in model.named_parameters() if ".experts." in name]
    return [gradient for gradient in named if gradient is not None]


def scaled_to(model: nn.Module, norm: Tensor) -> Tensor:
    for gradient in gradients(model):
        local(gradient).mul_(min(CLIP / (float(norm) + 1e-6), 1.0))
    return norm


def true_norm(model: nn.Module) -> Tensor:
    squares = [gradient.square().sum() for gradient in gradients(model)]
    whole = [square.full_tensor() if isinstance(square, DTensor) else square for square in squares]
    return torch.stack(whole).sum().sqrt()


# -- right steps -------------------------------------------------------------------------------------------------------


def share_of_the_mean(model: nn.Module, batch: Batch) -> Tensor:
    """A loss that DDP's and FSDP2's mean over processes turns into the mean over all tokens."""
    tokens, targets = own_rows(batch)
    counted = int((targets != -100).sum()) * dist.get_world_size() / int((batch[1] != -100).sum())
    loss: Tensor = model(tokens, targets).loss
    return loss * counted


def right_with_ddp(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    share_of_the_mean(model, batch).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return norm


def right_with_experts(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    share_of_the_mean(model, batch).backward()
    averaging_experts(model)
    norm = scaled_to(model, true_norm(model))
    optimizer.step()
    return norm


# -- accidents ---------------------------------------------------------------------------------------------------------


def doubled_experts(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """The gradients of experts have come from all processes, and nobody divides them as FSDP2 divides all others."""
    share_of_the_mean(model, batch).backward()
    norm = scaled_to(model, true_norm(model))
    optimizer.step()
    return norm


def norm_without_experts(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    share_of_the_mean(model, batch).backward()
    averaging_experts(model)
    squares = [
        parameter.grad.full_tensor().square().sum()
        for name, parameter in model.named_parameters()
        if ".experts." not in name and isinstance(parameter.grad, DTensor)
    ]
    norm = scaled_to(model, torch.stack(squares).sum().sqrt())
    optimizer.step()
    return norm


def norm_of_each_process(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    share_of_the_mean(model, batch).backward()
    averaging_experts(model)
    norm = scaled_to(model, torch.nn.utils.get_total_norm([local(gradient) for gradient in gradients(model)]))
    optimizer.step()
    return norm


def norm_with_own_experts(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """The norm is summed over the processes that share dense weights, and not over those with other experts."""
    share_of_the_mean(model, batch).backward()
    averaging_experts(model)
    dense = [
        parameter.grad.full_tensor().square().sum()
        for name, parameter in model.named_parameters()
        if ".experts." not in name and isinstance(parameter.grad, DTensor)
    ]
    own = [local(gradient).square().sum() for gradient in gradients_of_experts(model)]
    norm = scaled_to(model, torch.stack([*dense, *own]).sum().sqrt())
    optimizer.step()
    return norm


def mean_of_means(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    model(*own_rows(batch)).loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return norm


def accumulation_not_divided(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    for tokens, targets in micro_batches(batch):
        model(tokens, targets).loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return norm


def the_same_rows_everywhere(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    rows = len(batch[0]) // dist.get_world_size()
    model(batch[0][:rows], batch[1][:rows]).loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return norm


def nothing_is_reduced(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    assert isinstance(model, DistributedDataParallel)
    with model.no_sync():
        return right_with_ddp(model, optimizer, batch)


def decay_of_everything(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """Decay by hand, one for all, after the optimizer's own was switched off."""
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    share_of_the_mean(model, batch).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * 0.1)
    optimizer.step()
    return norm


def router_left_out(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """The script makes its groups by names, and the router is in none of them."""
    for group in optimizer.param_groups:
        if group["name"] == "router":
            group["lr"], group["weight_decay"] = 0.0, 0.0
    return right_with_ddp(model, optimizer, batch)


def frozen_router(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    loss = share_of_the_mean(model, batch)
    loss.backward()
    for name, parameter in model.named_parameters():
        if "router" in name:
            parameter.grad = None
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return norm


def auxiliary_losses(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    output = model(*batch)
    return {"loss": output.loss, "balance": BALANCE * output.load_balancing_loss(), "z": Z * output.z_loss()}


def auxiliary_loss_of_each_part(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    every = int((batch[1] != -100).sum())
    for part in micro_batches(batch):
        loss, balance, z = auxiliary_losses(model, part).values()
        share = int((part[1] != -100).sum()) * dist.get_world_size() / every
        ((loss + z) * share + balance).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return norm


DDP = DistributedDataParallel
EVERY = "embedding norm hidden qk_norm router expert_in expert_out final_norm readout"
ACCIDENTS = {
    "experts doubled": Accident(
        doubled_experts, sharded_experts_and_fsdp, "experts' gradients are summed", "expert_in expert_out"
    ),
    "norm without experts": Accident(norm_without_experts, sharded_experts_and_fsdp, "leaves out the experts", ""),
    "norm of each process": Accident(norm_of_each_process, sharded_experts_and_fsdp, "norm of what lies in it", ""),
    "norm with own experts": Accident(
        norm_with_own_experts, sharded_experts_and_fsdp, "with its own experts alone", ""
    ),
    "mean of means": Accident(mean_of_means, DDP, "mean of the means of parts", EVERY),
    "accumulation not divided": Accident(accumulation_not_divided, DDP, "not divided by their number", EVERY),
    "the same rows": Accident(the_same_rows_everywhere, DDP, "the same rows go to several", EVERY),
    "nothing reduced": Accident(nothing_is_reduced, DDP, "gradients are not summed over the", EVERY),
    "decay of everything": Accident(decay_of_everything, DDP, "and the plan has no decay there", ""),
    "router left out": Accident(router_left_out, DDP, "router does not move", ""),
    "frozen router": Accident(frozen_router, DDP, "no gradient arrives at router", "router"),
    "auxiliary loss": Accident(
        auxiliary_loss_of_each_part, DDP, "'balance' counts 2.00 times", EVERY.removesuffix(" final_norm readout")
    ),
}
