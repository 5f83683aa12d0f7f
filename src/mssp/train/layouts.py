"""Layouts: how a model lies on the processes of a run, and the norm of all its gradients wherever they lie.

Under every layout here a backward pass ends with the SUM over processes of their gradients. So each process runs its
part of the batch with a loss that is its share of the mean over the whole step.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mssp._constraints import Constraint, UnfitError, a_module, kind_of, one_of, optional, positive, switch, takes
from mssp.apply.sharding import is_sharded

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

LAYOUTS = ("one", "ddp", "fsdp", "ep")
SHARDED = ("fsdp", "ep")  # in which no process has whole parameters
NEAR_ZERO = 1e-6  # what torch.nn.utils.clip_grad_norm_ adds to a norm before it divides by it


def _parameters(value: Any) -> list[Tensor]:
    several = isinstance(value, Iterable) and not isinstance(value, Tensor | str | bytes | Mapping)
    tensors = list(value) if several else [value]
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):  # one that was used up has none
        raise UnfitError
    return tensors


_some_parameters = Constraint("the parameters of a model", _parameters)
_largest = Constraint("a positive number", lambda value: math.inf if value == math.inf else positive.take(value))


@takes(
    model=a_module,
    layout=one_of(LAYOUTS),
    precision=optional(kind_of("torch.distributed.fsdp.MixedPrecisionPolicy")),
)
def spread(model: nn.Module, layout: str, *, precision: MixedPrecisionPolicy | None = None) -> nn.Module:
    """Lay a model on the processes of the default process group. Gradients are summed over processes.

    >>> from mssp.nn import GPT, GPTConfig
    >>> model = GPT(GPTConfig(width=32, expert_width=16, experts=4, depth=2, vocabulary=64, context=16, head=16))
    >>> spread(model, "one") is model
    True

    Args:
        layout: ``one``: a single process. ``ddp``: every process has the whole model, which comes back wrapped.
            ``fsdp``: FSDP2, block by block. ``ep``: experts are divided among processes, and all else is as in
            ``fsdp``. The last two change the model in place.
        precision: in which types FSDP2 computes and sums; None for those of the parameters.

    Initial weights may be drawn before or after. The optimizer's groups are made after.
    """
    if layout == "one":
        if dist.is_initialized() and dist.get_world_size() > 1:
            raise ValueError(f"layout one is for a single process, and there are {dist.get_world_size()}: use ddp")
        return model
    if not dist.is_initialized():
        raise ValueError(f"layout {layout} needs a process group: start with torchrun, and init_process_group first")
    if layout == "ddp":
        if precision is not None:
            raise ValueError("precision is for the layouts fsdp and ep: with ddp use autocast")
        return _replicated(model)
    mesh = _mesh_for(model)
    elsewhere: set[nn.Parameter] = set()
    if layout == "ep":
        from mssp.train.expert_parallel import divide_experts

        elsewhere = divide_experts(model, mesh)
    _shard(model, mesh, elsewhere, precision)
    return model


def _replicated(model: nn.Module) -> nn.Module:
    """DDP divides sums by the number of processes, so gradients are multiplied by it where they arise.

    Communication that leaves out the division would be wrong where the gradients of several backward passes accumulate:
    DDP sums what has accumulated, and what was summed before would count once for each process.
    """
    from torch.nn.parallel import DistributedDataParallel

    processes = dist.get_world_size()
    for parameter in model.parameters():
        if parameter.requires_grad and processes > 1:
            parameter.register_hook(partial(operator.mul, processes))
    return DistributedDataParallel(model)


def _mesh_for(model: nn.Module) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    usual = "cuda" if dist.get_backend() == "nccl" else "cpu"
    kinds = {parameter.device.type for parameter in model.parameters()} - {"meta"}
    return init_device_mesh(kinds.pop() if len(kinds) == 1 else usual, (dist.get_world_size(),))


def _shard(
    model: nn.Module, mesh: DeviceMesh, elsewhere: set[nn.Parameter], precision: MixedPrecisionPolicy | None
) -> None:
    from torch.distributed.fsdp import FSDPModule, fully_shard

    options: dict[str, Any] = {} if precision is None else {"mp_policy": precision}
    for module in (*_blocks(model), model):
        fully_shard(module, mesh=mesh, ignored_params=elsewhere, **options)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it sums


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The blocks of a model, which are the entries of its outermost lists of modules."""
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child if any(True for _ in block.parameters()))
        else:
            yield from _blocks(child)


@takes(model=a_module, more=switch)
@contextlib.contextmanager
def accumulating(model: nn.Module, *, more: bool) -> Iterator[None]:
    """A block for one micro-batch: gradients travel between processes when no ``more`` of the same step come.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> for more in (True, False):
    ...     with accumulating(model, more=more):
    ...         model(torch.ones(2)).backward()
    >>> model.weight.grad
    tensor([[2., 2.]])

    The step is the same without it, and sends more. FSDP2 keeps whole gradients until the last micro-batch.
    """
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(not more)
    with model.no_sync() if more and isinstance(model, DistributedDataParallel) else contextlib.nullcontext():
        yield


@takes(parameters=_some_parameters)
@torch.no_grad()
def total_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The norm of all gradients together, whichever of them are sharded, on whichever meshes; the same everywhere.

    >>> weight = nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> total_norm([weight])
    tensor(5.)

    What is not a DTensor counts once: every process has the same of it. All processes have to call it.
    """
    # The gradients of each mesh and set of its axes that parts of a tensor lie along, in the same order everywhere: a
    # parameter without a gradient here may have one in another process.
    gradients: dict[tuple[Any, tuple[int, ...]], list[Tensor]] = {}
    device, wide = torch.device("cpu"), torch.float32
    for parameter in parameters:
        own = [] if parameter.grad is None else [_local_gradient(parameter)]
        gradients.setdefault(_divided_along(parameter), []).extend(own)
        device, wide = parameter.device, torch.promote_types(wide, parameter.dtype)
    total = torch.zeros((), device=device, dtype=wide)
    for (mesh, axes), parts in gradients.items():
        norms = torch._foreach_norm(parts, dtype=wide) if parts else [torch.zeros_like(total)]
        square = torch.stack(list(norms)).square().sum()
        for axis in axes:
            dist.all_reduce(square, group=mesh.get_group(axis))
        total = total + square
    return total.sqrt()


def _divided_along(tensor: Tensor) -> tuple[Any, tuple[int, ...]]:
    if not is_sharded(tensor):
        return None, ()
    placements = enumerate(tensor.placements)
    return tensor.device_mesh, tuple(axis for axis, placement in placements if not placement.is_replicate())


def _local_gradient(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    if not is_sharded(gradient):
        return gradient
    assert is_sharded(parameter)
    assert gradient.placements == parameter.placements, f"a gradient lies as {gradient.placements}"
    return gradient.to_local()


@takes(parameters=_some_parameters, largest=_largest)
@torch.no_grad()
def clip_(parameters: Iterable[Tensor], largest: float) -> Tensor:
    """Scale gradients in place so that the norm of all of them is at most ``largest``; returns the norm that they had.

    >>> weight = nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> norm = clip_([weight], 1.0)
    >>> norm, [round(entry, 4) for entry in weight.grad.tolist()]
    (tensor(5.), [0.6, 0.8])
    """
    parameters = list(parameters)
    norm = total_norm(parameters)
    gradients = [_local_gradient(parameter) for parameter in parameters if parameter.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, (largest / (norm + NEAR_ZERO)).clamp(max=1.0))
    return norm
