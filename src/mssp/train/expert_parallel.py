"""Expert parallelism: each process holds some of the experts, and tokens travel to them.

Process number r of R holds experts r·M/R up to (r+1)·M/R. A token's row is sent to the process of each of its experts,
with its gate, and the answer comes back to where the token is. The backward pass sends gradients along the same ways,
so the gradient of an expert is the sum over the tokens of all processes, without a further reduction. This is so for
the MoE layers of ``mssp.nn``; for models of Hugging Face, transformers does the same.

Shapes: T tokens here, N width, M experts in all, K active, R processes, P pairs of a token and an expert.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from mssp.nn.experts.paths import ExpertWeights
from mssp.nn.moe import Experts, apply_experts
from mssp.nn.router import Routing

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


_STYLE = "ep_dispatch_experts"  # transformers' name for tokens that travel, in the plans that families bring along


def divide_experts(model: nn.Module, mesh: DeviceMesh) -> set[nn.Parameter]:
    """Divide a model's experts among the processes of a mesh, in place; returns the parameters that are divided."""
    layers = [module for module in model.modules() if isinstance(module, Experts)]
    for layer in layers:
        _check_divides(layer.w_out.shape[0], mesh.size())
    if not layers:
        _divide_by_transformers(model, mesh)
    for layer in layers:
        for name, parameter in list(layer.named_parameters(recurse=False)):
            part = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
            layer.register_parameter(name, nn.Parameter(part, requires_grad=parameter.requires_grad))
        layer.__class__ = ShardedExperts
    return {parameter for parameter in model.parameters() if isinstance(parameter, DTensor)}


def _divide_by_transformers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Models of Hugging Face bring plans for expert parallelism along, and transformers carries them out."""
    plan = getattr(model, "ep_plan", None) or {}
    if _STYLE not in plan.values():
        raise ValueError(f"a {type(model).__name__} has no experts that layout ep can divide: use fsdp")
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    for layer in {path for path, style in plan.items() if style == _STYLE}:
        parts = re.compile(re.escape(layer).replace(r"\*", "[^.]+"))
        for name, module in model.named_modules():
            if parts.fullmatch(name):
                _check_divides(int(module.num_experts), mesh.size())
    apply_expert_parallelism(model, mesh, None, plan)


def _check_divides(experts: int, processes: int) -> None:
    if experts % processes:
        raise ValueError(f"layout ep needs a number of experts that {processes} processes divide, got {experts}")


class ShardedExperts(Experts):
    """Experts of which each process holds a part. :func:`divide_experts` makes them of whole ones."""

    def forward(self, x: Tensor, routing: Routing, factor: float = 1.0) -> Tensor:
        """The sum over each token's experts, times ``factor``, wherever the experts are."""
        assert isinstance(self.w_out, DTensor)
        group = self.w_out.device_mesh.get_group()
        width, experts = x.shape[-1], self.w_out.shape[0]
        rows_TN = x.reshape(-1, width)
        gates_TK = (routing.gates * factor).reshape(-1, routing.gates.shape[-1])
        chosen_TK = _numbers(routing, gates_TK)
        active = chosen_TK.shape[1]
        numbers_P = chosen_TK.flatten()
        order_P = numbers_P.argsort(stable=True)  # by expert, and so by process
        sent_RM = torch.bincount(numbers_P, minlength=experts).view(dist.get_world_size(group), -1)
        came_RM = torch.empty_like(sent_RM)
        dist.all_to_all_single(came_RM, sent_RM, group=group)
        sent, came = sent_RM.sum(1).tolist(), came_RM.sum(1).tolist()
        inputs_PN = _exchanged(rows_TN[order_P // active], came, sent, group)
        inner_P1 = _exchanged(gates_TK.reshape(-1, 1)[order_P], came, sent, group)
        outputs_PN = self._outputs_here(inputs_PN, inner_P1, came_RM)
        answers_PN = _exchanged(outputs_PN, sent, came, group)
        # Every pair goes back to its place, and then a token's pairs are added in the order in which it chose them.
        in_order_PN = torch.empty_like(answers_PN).index_copy(0, order_P, answers_PN)
        return in_order_PN.view(len(rows_TN), active, width).sum(1).view(x.shape)

    def _outputs_here(self, inputs_PN: Tensor, gates_P1: Tensor, came_RM: Tensor) -> Tensor:
        """Gate times output of this process's experts, for rows that came sorted by process and then by expert."""
        own = torch.arange(came_RM.shape[1], device=came_RM.device).repeat(len(came_RM))
        chosen_P1 = own.repeat_interleave(came_RM.flatten()).unsqueeze(1)
        w_in, w_out = _local(self.w_in), _local(self.w_out)
        b_in, b_out = (None if bias is None else _local(bias) for bias in (self.b_in, self.b_out))
        if not len(inputs_PN):  # nobody chose an expert of this process: all the same it answers, with zero gradients
            nothing = sum(part.sum() * 0 for part in (w_in, w_out, b_in, b_out) if part is not None)
            return inputs_PN * gates_P1.to(inputs_PN.dtype) + nothing
        weights = ExpertWeights(w_in, w_out, b_in, b_out)
        return apply_experts(
            inputs_PN, gates_P1, chosen_P1, weights, self.activation, self.dispatch, check_finite=self.check_finite
        )


def _numbers(routing: Routing, gates_TK: Tensor) -> Tensor:
    if routing.chosen is not None:
        return routing.chosen.reshape(gates_TK.shape)
    return torch.arange(gates_TK.shape[1], device=gates_TK.device).expand_as(gates_TK)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _exchanged(rows: Tensor, came: list[int], sent: list[int], group: ProcessGroup) -> Tensor:
    """The rows that come here from each process, in their order, for those that go to each; gradients go back."""
    exchanged: Tensor = wait_tensor(all_to_all_single_autograd(rows.contiguous(), came, sent, group))
    return exchanged
