"""Four ways to compute the same thing: the sum over each token's chosen experts of gate times expert output.

``loop`` is the reference: it says line by line what an expert does. ``dense`` runs all experts as one wide layer whose
hidden units are multiplied by the gate (zero where an expert was not chosen). That is two large products: the fastest
where many of the experts are active, and the most exact in Regime II, where one expert's output is of order √M.
``grouped`` sorts the pairs of a token and an expert, and multiplies each expert's rows by its matrix. ``triton`` does
the same with kernels that gather tokens on the fly, for small experts.

No path holds the outputs of all experts, M x tokens x width. ``dense`` holds hidden units, M x tokens x E; ``grouped``
and ``triton`` hold rows, K x tokens x width, and do what ``dense`` does where every expert is chosen. ``dense``
multiplies experts that were not chosen by zero, so that one whose hidden units overflow reaches the output as NaN.

Shapes: T tokens, N width, M experts, K active, E expert width, F rows of w_in (E, or 2E for gated experts: first the
gate, then the up projection), R = T*K pairs. Products of all paths are in the dtype of x; gates are float32 or wider.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from mssp.nn.activations import activation
from mssp.nn.experts import backend
from mssp.nn.experts.grouped import rows_times_matrices
from mssp.nn.experts.pairs import Pairs, collect, sort_by_expert, spread
from mssp.nn.experts.sorted import sorted_experts


@dataclass(frozen=True)
class ExpertWeights:
    """The weights of M experts.

    Both stacks have the hidden units of an expert on axis 1, so that all experts together are one layer of width M*E
    without a copy.
    """

    w_in: Tensor
    w_out: Tensor
    b_in: Tensor | None = None
    b_out: Tensor | None = None

    def to(self, dtype: torch.dtype) -> ExpertWeights:
        b_in, b_out = (None if bias is None else bias.to(dtype) for bias in (self.b_in, self.b_out))
        return ExpertWeights(self.w_in.to(dtype), self.w_out.to(dtype), b_in, b_out)

    @property
    def experts(self) -> int:
        return self.w_out.shape[-3]

    @property
    def gated(self) -> bool:
        return self.w_in.shape[-2] != self.w_out.shape[-2]


def loop(x_TN: Tensor, gates_TK: Tensor, chosen_TK: Tensor | None, weights: ExpertWeights, act: str) -> Tensor:
    """One expert after the other, each on the tokens that chose it."""
    gates_TM = gates_of_all(gates_TK, chosen_TK, weights.experts)
    chosen_TM = torch.ones_like(gates_TM, dtype=torch.bool)
    if chosen_TK is not None:
        chosen_TM = torch.zeros_like(chosen_TM).scatter(-1, chosen_TK, True)
    out_TN = torch.zeros_like(x_TN, dtype=gates_TM.dtype)
    for m in range(weights.experts):
        tokens = chosen_TM[:, m].nonzero().squeeze(1)
        b_in = None if weights.b_in is None else weights.b_in[m]
        pre = F.linear(x_TN[tokens], weights.w_in[m], b_in)
        y = hidden_units(pre, act, weights.gated) @ weights.w_out[m]
        if weights.b_out is not None:
            y = y + weights.b_out[m]
        out_TN = out_TN.index_add(0, tokens, gates_TM[tokens, m, None] * y)
    return out_TN.to(x_TN.dtype)


def dense(x_TN: Tensor, gates_TK: Tensor, chosen_TK: Tensor | None, weights: ExpertWeights, act: str) -> Tensor:
    """All experts on all tokens, as one wide layer."""
    gates_TM = gates_of_all(gates_TK, chosen_TK, weights.experts)
    return mix_all(all_pre_activations(x_TN, weights), gates_TM, weights, act)


def all_pre_activations(x_TN: Tensor, weights: ExpertWeights) -> Tensor:
    """[..., T, M, F]: what enters the hidden units of every expert; x and weights may have the same leading axes."""
    w_in = weights.w_in
    pre: Tensor = x_TN @ w_in.flatten(-3, -2).mT
    if weights.b_in is not None:
        pre = pre + weights.b_in.flatten(-2).unsqueeze(-2)
    return pre.view(*pre.shape[:-1], *w_in.shape[-3:-1])


def mix_all(pre_TMF: Tensor, gates_TM: Tensor, weights: ExpertWeights, act: str) -> Tensor:
    """[..., T, N]: the sum over all experts, the gate folded into their hidden units."""
    hidden_TME = gated_hidden_units(pre_TMF, gates_TM, act, weights.gated)
    out_TN: Tensor = hidden_TME.flatten(-2) @ weights.w_out.flatten(-3, -2)
    return _plus_output_bias(out_TN, gates_TM, None, weights)


def grouped(x_TN: Tensor, gates_TK: Tensor, chosen_TK: Tensor | None, weights: ExpertWeights, act: str) -> Tensor:
    """Rows sorted by expert, one grouped product for each of the two layers."""
    if chosen_TK is None or weights.experts == chosen_TK.shape[1]:
        return dense(x_TN, gates_TK, chosen_TK, weights, act)
    pairs, gate_R = _sorted(gates_TK, chosen_TK, weights.experts)
    pre_RF = rows_times_matrices(spread(x_TN, pairs), weights.w_in, pairs.offsets, transposed=True)
    if weights.b_in is not None:
        pre_RF = pre_RF + weights.b_in[chosen_TK.flatten()[pairs.order]]
    hidden_RE = gated_hidden_units(pre_RF, gate_R, act, weights.gated)
    out_TN = collect(rows_times_matrices(hidden_RE, weights.w_out, pairs.offsets), pairs)
    return _plus_output_bias(out_TN, gates_TK, chosen_TK, weights)


def triton(x_TN: Tensor, gates_TK: Tensor, chosen_TK: Tensor | None, weights: ExpertWeights, act: str) -> Tensor:
    """The same as ``grouped``, by kernels that read each row from its token."""
    if chosen_TK is None or weights.experts == chosen_TK.shape[1]:
        return dense(x_TN, gates_TK, chosen_TK, weights, act)
    pairs, gate_R = _sorted(gates_TK, chosen_TK, weights.experts)
    out_TN = sorted_experts(x_TN, gate_R, weights.w_in, weights.w_out, weights.b_in, pairs, act, weights.gated)
    return _plus_output_bias(out_TN, gates_TK, chosen_TK, weights)


PATHS: dict[str, Callable[[Tensor, Tensor, Tensor | None, ExpertWeights, str], Tensor]] = {
    "loop": loop,
    "dense": dense,
    "grouped": grouped,
    "triton": triton,
}


def possible_paths(device: str, dtype: torch.dtype) -> tuple[str, ...]:
    """The paths worth choosing between on a device; the loop waits for a GPU at every expert."""
    if device != "cuda":
        return ("dense", "grouped", "loop")
    return ("dense", "grouped", "triton") if backend.runs_triton(device, dtype) else ("dense", "grouped")


def gates_of_all(gates_TK: Tensor, chosen_TK: Tensor | None, experts: int) -> Tensor:
    """Gates of the chosen experts as gates of all of them: zero for the others."""
    if chosen_TK is None:
        return gates_TK
    return gates_TK.new_zeros(*gates_TK.shape[:-1], experts).scatter(-1, chosen_TK, gates_TK)


def hidden_units(pre_F: Tensor, act: str, gated: bool) -> Tensor:
    """The activations of hidden units: a(pre), or a(gate) * up for gated experts (SwiGLU with ``silu``)."""
    if not gated:
        return activation(act)(pre_F)
    gate, up = pre_F.chunk(2, dim=-1)
    return activation(act)(gate) * up


def gated_hidden_units(pre_F: Tensor, gate: Tensor, act: str, gated: bool) -> Tensor:
    """Hidden units times their expert's gate, in the dtype of the pre-activations, rounded once."""
    if backend.fused(pre_F):
        width = pre_F.shape[-1]
        pre_RF, gate_R = pre_F.reshape(-1, width).contiguous(), gate.flatten().contiguous()
        rows: Tensor = _GatedRows.apply(pre_RF, gate_R, act, gated)  # type: ignore[no-untyped-call]
        return rows.view(*pre_F.shape[:-1], rows.shape[-1])
    wide = torch.promote_types(pre_F.dtype, torch.float32)
    return (hidden_units(pre_F.to(wide), act, gated) * gate.unsqueeze(-1)).to(pre_F.dtype)


def _sorted(gates_TK: Tensor, chosen_TK: Tensor, experts: int) -> tuple[Pairs, Tensor]:
    pairs = sort_by_expert(chosen_TK, experts)
    return pairs, gates_TK.flatten().gather(0, pairs.order)


def _plus_output_bias(out_TN: Tensor, gates_TK: Tensor, chosen_TK: Tensor | None, weights: ExpertWeights) -> Tensor:
    if weights.b_out is None:
        return out_TN
    gates_TM = gates_of_all(gates_TK, chosen_TK, weights.experts)
    return out_TN + gates_TM.to(out_TN.dtype) @ weights.b_out


class _GatedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pre_RF: Tensor, gate_R: Tensor, act: str, gated: bool) -> Tensor:
        ctx.save_for_backward(pre_RF, gate_R)
        ctx.act, ctx.gated = act, gated
        hidden_RE: Tensor = backend.kernels().gate_rows(pre_RF, gate_R, act, gated)
        return hidden_RE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RE: Tensor) -> Any:
        grads = backend.kernels().gate_rows_backward(*ctx.saved_tensors, grad_RE.contiguous(), ctx.act, ctx.gated)
        return *grads, None, None
