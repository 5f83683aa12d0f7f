"""A MoE layer: a router, and the experts that it chooses from, each of two layers, plain or gated.

Shapes: T tokens (any leading axes), N width, M experts, K active, E expert width, F rows of w_in (E, or 2E if gated).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mssp._constraints import one_of, optional, positive, positive_int, positive_or_zero, switch, takes
from mssp.nn.activations import ACTIVATIONS
from mssp.nn.activations import activation as check_activation
from mssp.nn.experts import backend
from mssp.nn.experts.choice import about, fastest
from mssp.nn.experts.paths import PATHS, ExpertWeights, possible_paths
from mssp.nn.multipliers import WithMultipliers, default_aggregation, planned_aggregation
from mssp.nn.router import GATES, Router, Routing, without_autocast
from mssp.planning.parameter import ParamInfo

if TYPE_CHECKING:
    from mssp.planning.plans import Plan

DISPATCHES = ("auto", *PATHS)


def apply_experts(
    x: Tensor,
    gates: Tensor,
    chosen: Tensor | None,
    weights: ExpertWeights,
    activation: str = "gelu",
    dispatch: str = "auto",
    *,
    check_finite: bool = False,
) -> Tensor:
    """Σ over the chosen experts of gate times expert output, for every token.

    >>> weights = ExpertWeights(torch.ones(3, 2, 4), torch.ones(3, 2, 4))
    >>> x, gates = torch.ones(1, 4), torch.tensor([[0.5, 0.25]])
    >>> apply_experts(x, gates, torch.tensor([[0, 2]]), weights, "identity")
    tensor([[6., 6., 6., 6.]])

    Args:
        x: tokens, [..., N].
        gates: weights of the chosen experts, [..., K], multiplied by the aggregation's factor if there is one.
        chosen: numbers of the chosen experts, [..., K], all different for one token; None for all experts in order.
        dispatch: ``auto`` takes the path that :mod:`mssp.nn.experts.choice` expects to be the fastest.
        check_finite: raise where x or a gate is NaN or infinite. This waits for the device.

    Under autocast the products are in its dtype.
    """
    _check_shapes(x, gates, chosen, weights)
    _check_numbers(x, gates, chosen, weights.experts, check_finite)
    check_activation(activation)
    device = x.device.type
    autocast = _autocasts(x)
    dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
    for tensor in (weights.w_in, weights.w_out, weights.b_in, weights.b_out):
        if not autocast and tensor is not None and tensor.dtype != dtype:
            raise ValueError(f"inputs are {dtype} and expert weights {tensor.dtype}: use one dtype, or autocast")
    weights = weights.to(dtype)
    rows = x.reshape(-1, x.shape[-1]).to(dtype)
    gates = gates.reshape(-1, gates.shape[-1]).to(torch.promote_types(gates.dtype, torch.float32))
    chosen = None if chosen is None else chosen.reshape(gates.shape)
    path = chosen_path(rows, gates, weights, dispatch)
    with without_autocast(device):
        return PATHS[path](rows, gates, chosen, weights, activation).view(x.shape)


@takes(
    width=positive_int,
    expert_width=positive_int,
    experts=positive_int,
    activation=one_of(list(ACTIVATIONS)),
    gated=switch,
    bias=switch,
    dispatch=one_of(DISPATCHES),
    check_finite=switch,
)
class Experts(nn.Module):
    """M experts of two layers each.

    Args:
        gated: a gate beside the up projection: ``activation="silu"`` makes it SwiGLU.
        bias: biases in both layers.
        dispatch: ``auto``, ``loop``, ``dense``, ``grouped`` or ``triton``.
    """

    def __init__(
        self,
        width: int,
        expert_width: int,
        experts: int,
        *,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = False,
        dispatch: str = "auto",
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        N, E, M = width, expert_width, experts
        F = 2 * E if gated else E
        self.activation, self.dispatch, self.gated, self.check_finite = activation, dispatch, gated, check_finite
        self.w_in = nn.Parameter(torch.randn(M, F, N) * N**-0.5)
        self.w_out = nn.Parameter(torch.randn(M, E, N) * E**-0.5)
        self.b_in = nn.Parameter(torch.zeros(M, F)) if bias else None
        self.b_out = nn.Parameter(torch.zeros(M, N)) if bias else None

    def forward(self, x: Tensor, routing: Routing, factor: float = 1.0) -> Tensor:
        """The sum over each token's experts, times ``factor``."""
        return apply_experts(
            x,
            routing.gates * factor,
            routing.chosen,
            ExpertWeights(self.w_in, self.w_out, self.b_in, self.b_out),
            self.activation,
            self.dispatch,
            check_finite=self.check_finite,
        )

    def param_infos(self) -> Mapping[str, ParamInfo]:
        halves = "(2 out) in" if self.gated else "out in"
        infos = {
            "w_in": ParamInfo("expert_in", layout=halves, expert_axis=0),
            "w_out": ParamInfo("expert_out", layout="in out", expert_axis=0),
        }
        if self.b_in is not None:
            infos["b_in"] = ParamInfo("expert_in_bias", layout="(2 out)" if self.gated else "out", expert_axis=0)
            infos["b_out"] = ParamInfo("expert_out_bias", layout="out", expert_axis=0)
        return infos

    def extra_repr(self) -> str:
        M, E, N = self.w_out.shape
        kind = f"gated {self.activation}" if self.gated else self.activation
        return f"{M} x ({N} -> {E} -> {N}), {kind}, dispatch={self.dispatch}"


def _autocasts(x: Tensor) -> bool:
    """Whether autocast applies: it leaves float64 alone, and does not know the meta device."""
    return not x.is_meta and x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type)


def check_dispatch(dispatch: str) -> None:
    if dispatch not in DISPATCHES:
        one_of(DISPATCHES)("dispatch", dispatch)  # which refuses it


def chosen_path(rows: Tensor, gates: Tensor, weights: ExpertWeights, dispatch: str = "auto") -> str:
    """The path to take for tokens [T, N] with gates [T, K]; a ``dispatch`` that cannot be taken is an error."""
    check_dispatch(dispatch)
    if dispatch == "triton":
        _check_triton(rows)
    if torch._C._are_functorch_transforms_active():  # which know the operations of the dense path only
        if dispatch not in ("auto", "dense"):
            raise ValueError(f"dispatch {dispatch!r} does not go with torch.func: use 'dense' or 'auto'")
        return "dense"
    if dispatch != "auto":
        return dispatch
    compiling = torch.compiler.is_compiling()
    paths = possible_paths(rows.device.type, rows.dtype)
    if compiling:
        paths = tuple(path for path in paths if path != "loop")
    M, E, N = weights.w_out.shape
    half, tokens = rows.dtype.itemsize <= 2, about(len(rows), step=16 if compiling else 2)
    where = (rows.device.type, rows.device.index)
    return fastest(*where, half, tokens, N, M, gates.shape[1], E, weights.gated, paths)


def _check_triton(rows: Tensor) -> None:
    if not backend.HAS_TRITON:
        raise ValueError("dispatch 'triton' needs the triton package: install it, or use 'auto'")
    if rows.is_cuda and rows.dtype == torch.float64:
        raise ValueError("dispatch 'triton' has no float64 on a GPU: use 'dense', 'grouped' or 'loop'")
    if not rows.is_cuda and not backend.INTERPRETS:
        raise ValueError(
            f"dispatch 'triton' runs on CUDA devices, the inputs are on {rows.device.type}: use 'auto', "
            "or set TRITON_INTERPRET=1 to step through it"
        )
    if not rows.is_cuda and rows.dtype.itemsize <= 2:
        raise ValueError(f"dispatch 'triton' has no {rows.dtype} in Triton's interpreter: use float32")


def _check_shapes(x: Tensor, gates: Tensor, chosen: Tensor | None, weights: ExpertWeights) -> None:
    if weights.w_in.dim() != 3 or weights.w_out.dim() != 3:
        raise ValueError(
            f"expert weights are stacks of matrices, got {tuple(weights.w_in.shape)} and {tuple(weights.w_out.shape)}"
        )
    M, E, N = weights.w_out.shape
    F = weights.w_in.shape[1]
    if weights.w_in.shape != (M, F, N) or F not in (E, 2 * E):
        raise ValueError(
            f"w_in {tuple(weights.w_in.shape)} does not go with w_out {(M, E, N)}: expected {(M, E, N)}, "
            f"or {(M, 2 * E, N)} for gated experts"
        )
    for name, bias, wanted in (("b_in", weights.b_in, (M, F)), ("b_out", weights.b_out, (M, N))):
        if bias is not None and tuple(bias.shape) != wanted:
            raise ValueError(f"{name} is {tuple(bias.shape)}, expected {wanted}")
    if x.shape[-1:] != (N,):
        raise ValueError(f"the experts take inputs of width {N}, got {tuple(x.shape)}")
    if not gates.dim() or not gates.shape[-1]:
        raise ValueError(f"gates {tuple(gates.shape)} hold no expert for a token")
    if chosen is not None and (chosen.is_floating_point() or chosen.dtype == torch.bool):
        raise ValueError(f"chosen experts are whole numbers, got {chosen.dtype}")
    K = gates.shape[-1]
    if gates.shape[:-1] != x.shape[:-1] or (chosen is not None and chosen.shape != gates.shape):
        numbers = "" if chosen is None else f", chosen experts {tuple(chosen.shape)}"
        raise ValueError(f"gates {tuple(gates.shape)}{numbers} do not go with inputs {tuple(x.shape)}")
    if K > M or (chosen is None and K != M):
        raise ValueError(f"gates for {K} experts, but there are {M}")


def _check_numbers(x: Tensor, gates: Tensor, chosen: Tensor | None, experts: int, check_finite: bool) -> None:
    """Refuses wrong values; on a GPU only with ``check_finite``, because reading values forces a synchronization."""
    if check_finite:
        for name, tensor in (("inputs", x), ("gates", gates)):
            if not tensor.isfinite().all():
                raise ValueError(f"the experts' {name} {tuple(tensor.shape)} hold NaN or infinity")
    if chosen is None or not (backend.readable(chosen) or (check_finite and chosen.numel())):
        return
    lowest, highest = int(chosen.min()), int(chosen.max())
    if lowest < 0 or highest >= experts:
        raise ValueError(f"chosen experts are numbered {lowest} to {highest}, but there are {experts}, counted from 0")


@takes(
    width=positive_int,
    expert_width=positive_int,
    experts=positive_int,
    active=optional(positive_int),
    gate=one_of(GATES),
    inverse_temperature=positive,
    normalise=switch,
    router_bias=switch,
    noise=positive_or_zero,
    random_bias=positive_or_zero,
    activation=one_of(list(ACTIVATIONS)),
    gated=switch,
    bias=switch,
    dispatch=one_of(DISPATCHES),
    check_finite=switch,
)
class MoE(WithMultipliers):
    """aggregation · Σ over the chosen experts of gate · expert(x)

    >>> import torch
    >>> moe = MoE(width=16, expert_width=8, experts=4, active=2)
    >>> y, routing = moe(torch.randn(3, 16))
    >>> y.shape, routing.chosen.shape
    (torch.Size([3, 16]), torch.Size([3, 2]))

    Args:
        active: experts per token; None for all of them (soft routing).
        gate, inverse_temperature, normalise, router_bias, noise, random_bias: of the :class:`Router`.
        activation, gated, bias, dispatch: of the :class:`Experts`.
        check_finite: raise where an input or a logit is NaN or infinite. This waits for the device.

    ``aggregation`` is part of the state dict. Until :func:`mssp.initialize` sets it from a plan, it is 1/K for sigmoid
    gates, and 1 for softmax and renormalised gates, which are shares of one.
    """

    MULTIPLIERS = ("aggregation",)

    def __init__(
        self,
        width: int,
        expert_width: int,
        experts: int,
        active: int | None = None,
        *,
        gate: str = "sigmoid",
        inverse_temperature: float = 1.0,
        normalise: bool = False,
        router_bias: bool = False,
        noise: float = 0.0,
        random_bias: float = 0.0,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = False,
        dispatch: str = "auto",
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        self.router = Router(
            width,
            experts,
            active,
            gate=gate,
            inverse_temperature=inverse_temperature,
            normalise=normalise,
            bias=router_bias,
            noise=noise,
            random_bias=random_bias,
            check_finite=check_finite,
        )
        self.experts = Experts(
            width,
            expert_width,
            experts,
            activation=activation,
            gated=gated,
            bias=bias,
            dispatch=dispatch,
            check_finite=check_finite,
        )
        self.aggregation = default_aggregation(self.router.gate_kind, self.router.active)

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        routing = self.router(x)
        return self.experts(x, routing, self.aggregation), routing

    def plan_multipliers(self, plan: Plan) -> Mapping[str, float]:
        """What :func:`mssp.initialize` sets."""
        if plan.target.active != self.router.active:  # no parameter's shape would show it
            raise ValueError(f"the plan is for {plan.target.active} active experts, a layer has {self.router.active}")
        return {"aggregation": planned_aggregation(self.router.gate_kind, plan)}
