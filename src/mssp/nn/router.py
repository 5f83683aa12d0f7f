"""Routers, which choose experts for each token and compute the gates: the weights of the chosen experts.

    ψ = Q h,   φ = σ(β ψ)         σ: sigmoid or softmax, β: inverse temperature

All of this is computed in float32 or wider, under autocast too: gates decide where a token goes, and bfloat16 has three
digits. A router keeps nothing between calls: losses and statistics belong to the :class:`Routing` that it returns.

Shapes: T tokens (any leading axes), N width, M experts, K active.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mssp._constraints import one_of, optional, positive, positive_int, positive_or_zero, switch, takes
from mssp.apply.random_numbers import normals
from mssp.planning.parameter import ParamInfo

GATES = ("sigmoid", "softmax")
# Forms of the auxiliary losses: ours, and those of the code of the paper's authors.
LOSS_FORMS = MEAN, AUTHORS = ("mean", "authors")


@dataclass(frozen=True)
class RouterStatistics:
    """Statistics of how tokens are distributed over experts.

    Args:
        loads: the share of all pairs that went to each expert; sums to 1.
        entropy: of the scores as a distribution over experts, in nats, mean over tokens; log M is uniform.
        highest, lowest: a token's largest and smallest score, means over tokens (the paper's router concentration).
            Scores of a softmax are multiplied by M/2, so that both kinds of gates have 0.5 where logits are zero.
    """

    loads: Tensor
    entropy: Tensor
    highest: Tensor
    lowest: Tensor


@dataclass(frozen=True)
class Routing:
    """The result of routing: the chosen experts of each token, and their gates.

    Args:
        logits: ψ, [..., M].
        scores: φ of every expert, [..., M].
        gates: the weight of each chosen expert, [..., K].
        chosen: the numbers of the chosen experts, [..., K]; None where all are, in order.
        probabilities: the scores as a distribution over experts, [..., M].
        gate: the kind of gate, ``sigmoid`` or ``softmax``.
    """

    logits: Tensor
    scores: Tensor
    gates: Tensor
    chosen: Tensor | None
    probabilities: Tensor
    gate: str

    @property
    def experts(self) -> int:
        return self.logits.shape[-1]

    def loads(self) -> Tensor:
        """The share of all pairs of a token and an expert that went to each expert, [M]; no gradient."""
        if self.chosen is None:
            return self.logits.new_full((self.experts,), 1 / self.experts)
        # Unlike bincount, a sum of marks neither forces a synchronization nor adds by atomics.
        marks = torch.zeros_like(self.logits).scatter(-1, self.chosen, 1 / self.chosen.shape[-1])
        return _mean_over_tokens(marks)

    def load_balancing_loss(self) -> Tensor:
        """The auxiliary loss of the Switch Transformer, M Σ_m load_m · mean probability_m: 1 where routing is uniform.

        Loads are counts and carry no gradient. With soft routing they are all equal, and the loss is the constant 1.
        """
        return self.experts * (self.loads() * _mean_over_tokens(self.probabilities)).sum()

    def authors_load_balancing_loss(self) -> Tensor:
        """The same in the code of the paper's authors: M Σ_m load_m · mean over tokens of gate_m / K.

        Their loads are shares of tokens, which sum to K, and their gates are those that weigh experts: without a
        normalisation, times the aggregation factor 1/K, and 0 where an expert is not chosen. Where routing is uniform
        the loss is K times the mean gate.

        >>> uniform = route(torch.eye(4) + torch.eye(4).roll(1, 0), active=2)  # each expert for two of four tokens
        >>> losses = uniform.load_balancing_loss(), uniform.authors_load_balancing_loss()
        >>> [round(loss.item(), 4) for loss in losses], round(uniform.gates.mean().item(), 4)
        ([1.0, 1.4621], 0.7311)
        """
        active = self.gates.shape[-1]
        of_chosen = self.gates / active
        gates = of_chosen if self.chosen is None else torch.zeros_like(self.logits).scatter(-1, self.chosen, of_chosen)
        return self.experts * (active * self.loads() * _mean_over_tokens(gates)).sum()

    def z_loss(self) -> Tensor:
        """The router z-loss of ST-MoE: the mean squared log-sum-exp of the logits, which keeps them small."""
        return _mean_over_tokens(self.logits.logsumexp(-1, keepdim=True).square()).squeeze(0)

    @torch.no_grad()
    def statistics(self) -> RouterStatistics:
        relative = self.scores if self.gate == "sigmoid" else self.scores * (self.experts / 2)
        entropy = torch.special.entr(self.probabilities).sum(-1)
        of_tokens = torch.stack([entropy, relative.amax(-1), relative.amin(-1)], dim=-1)
        return RouterStatistics(self.loads(), *_mean_over_tokens(of_tokens))


def _mean_over_tokens(x: Tensor) -> Tensor:
    """The mean over all axes but the last; 0 where there are no tokens, as on a rank whose shard is empty."""
    rows = x.reshape(-1, x.shape[-1])
    return rows.sum(0) / max(rows.shape[0], 1)


def router_logits(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """ψ = Q x (+ bias) in float32 or wider, under autocast too; x [..., T, N] and Q [..., M, N] may have replicas."""
    wide = torch.promote_types(x.dtype, torch.float32)
    with without_autocast(x.device.type):
        logits: Tensor = x.to(wide) @ weight.to(wide).mT
        return logits if bias is None else logits + bias.to(wide)


def without_autocast(device: str) -> contextlib.AbstractContextManager[object]:
    """Turns autocast off. The meta device has none, and torch.amp's function that says so does not compile."""
    return contextlib.nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


def route(
    logits: Tensor,
    active: int | None = None,
    *,
    gate: str = "sigmoid",
    inverse_temperature: float = 1.0,
    normalise: bool = False,
    noise: Tensor | None = None,
    check_finite: bool = False,
) -> Routing:
    """Gates from logits [..., M]: of all experts, or of the ``active`` ones with the largest logits.

    No token is dropped.

    >>> routing = route(torch.tensor([[0.0, 2.0, -1.0]]), active=2)
    >>> routing.chosen.tolist(), [round(g, 3) for g in routing.gates[0].tolist()]
    ([[1, 0]], [0.881, 0.5])

    Args:
        normalise: divide the gates of the chosen experts by their sum.
        noise: added to the logits where experts are chosen, not in the gates.
        check_finite: raise where a logit is NaN or infinite. This waits for the device.
    """
    if not logits.dim():
        raise ValueError("logits are one number per expert, got a single number")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    experts = logits.shape[-1]
    check_gate(gate, inverse_temperature)
    active = check_active(active, experts)
    if check_finite and not logits.isfinite().all():
        raise ValueError(f"router logits {tuple(logits.shape)} hold NaN or infinity: look at the router's input")
    sharpened = inverse_temperature * logits
    scores = torch.sigmoid(sharpened) if gate == "sigmoid" else torch.softmax(sharpened, -1)
    # Ratios of scores are computed from their logarithms: sigmoids far below zero would give 0 / 0.
    log_scores = F.logsigmoid(sharpened) if gate == "sigmoid" else sharpened
    probabilities = torch.softmax(log_scores, -1)
    chosen = None
    gates = scores
    if active < experts:
        # The order of logits is the order of scores, without the ties of a saturated sigmoid.
        preference = logits if noise is None else logits + noise
        chosen = preference.topk(active, dim=-1).indices
        gates = scores.gather(-1, chosen)
    if normalise:
        gates = probabilities if chosen is None else torch.softmax(log_scores.gather(-1, chosen), -1)
    return Routing(logits, scores, gates, chosen, probabilities, gate)


@takes(
    width=positive_int,
    experts=positive_int,
    active=optional(positive_int),
    gate=one_of(GATES),
    inverse_temperature=positive,
    normalise=switch,
    bias=switch,
    noise=positive_or_zero,
    random_bias=positive_or_zero,
    check_finite=switch,
)
class Router(nn.Module):
    """A linear router.

    >>> router = Router(width=16, experts=8, active=2)
    >>> router(torch.randn(4, 16)).gates.shape
    torch.Size([4, 2])

    Args:
        active: experts per token; None for all of them (soft routing).
        inverse_temperature: β.
        normalise: divide the gates of the chosen experts by their sum.
        bias: a learned bias on the logits.
        noise: the standard deviation of noise on the choice, fresh for every token while training. A router that
            starts at zero gives every expert the same logit, and needs noise or ``random_bias`` to choose between them.
        random_bias: the standard deviation of a fixed random preference for experts, in the choice only.
            :func:`mssp.initialize` draws it, like the weights, by its seed and the router's name.
        check_finite: raise where a logit is NaN or infinite. This waits for the device.
    """

    random_bias: Tensor | None

    def __init__(
        self,
        width: int,
        experts: int,
        active: int | None = None,
        *,
        gate: str = "sigmoid",
        inverse_temperature: float = 1.0,
        normalise: bool = False,
        bias: bool = False,
        noise: float = 0.0,
        random_bias: float = 0.0,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        self.active = check_active(active, experts)
        self.gate, self.inverse_temperature, self.normalise = gate, inverse_temperature, normalise
        self.noise, self.random_bias_std, self.check_finite = noise, random_bias, check_finite
        self.weight = nn.Parameter(torch.empty(experts, width))
        self.bias = nn.Parameter(torch.zeros(experts)) if bias else None
        # Kept with the weights, so that a reloaded model routes as before.
        self.register_buffer("random_bias", torch.empty(experts) if random_bias else None)
        nn.init.normal_(self.weight, std=1 / width)
        self.draw_for_plan(0, "")

    def forward(self, x: Tensor) -> Routing:
        experts, width = self.weight.shape
        if x.shape[-1:] != (width,):
            raise ValueError(f"the router takes inputs of width {width}, got {tuple(x.shape)}")
        logits = router_logits(x, self.weight, self.bias)
        with without_autocast(x.device.type):
            return route(
                logits,
                self.active,
                gate=self.gate,
                inverse_temperature=self.inverse_temperature,
                normalise=self.normalise,
                noise=None if self.active == experts else self._preference(logits),
                check_finite=self.check_finite,
            )

    def draw_for_plan(self, seed: int, name: str) -> None:
        """Sets the random bias to the one that belongs to a seed and a name."""
        if self.random_bias is not None and not self.random_bias.is_meta:
            numbers = torch.from_numpy(normals(seed, f"{name}.random_bias", 0, len(self.random_bias)))
            self.random_bias.copy_(numbers * self.random_bias_std)

    def _preference(self, logits: Tensor) -> Tensor | None:
        noise = self.noise * torch.randn_like(logits) if self.noise and self.training else None
        if self.random_bias is None:
            return noise
        fixed = self.random_bias.to(logits.dtype)
        return fixed if noise is None else noise + fixed

    @property
    def gate_kind(self) -> str:
        return gate_kind(self.gate, self.normalise)

    def param_infos(self) -> Mapping[str, ParamInfo]:
        infos = {"weight": ParamInfo("router", layout="out in")}
        return infos if self.bias is None else {**infos, "bias": ParamInfo("router_bias")}

    def extra_repr(self) -> str:
        experts, width = self.weight.shape
        return f"{width} -> {experts}, active={self.active}, gate={self.gate_kind}"


def gate_kind(gate: str, normalise: bool) -> str:
    """``sigmoid``, ``softmax`` or ``renormalised``, as :func:`mssp.initialize` names gates."""
    return "renormalised" if normalise else gate


def check_gate(gate: str, inverse_temperature: float) -> None:
    if gate not in GATES:
        one_of(GATES)("gate", gate)  # which refuses it
    positive("inverse_temperature", inverse_temperature)


def check_active(active: int | None, experts: int) -> int:
    """The number of active experts; None stands for all of them."""
    active = experts if active is None else positive_int("active", active)
    if active > experts:
        raise ValueError(f"active = {active} of {experts} experts: a token cannot go to more experts than there are")
    return active
