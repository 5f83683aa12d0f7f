"""One MoE layer against its start: every term of the sum over experts, forward and backward.

With W = W_0 + ΔW for the experts' two layers (2: in, 3: out), the router Q and the readout (4), h2 = a(W2 h1), and the
gate φ of now (times the aggregation factor) everywhere, the paper's (Agg) is

    Σ φ W3 h2 =  Σ φ W3_0 h2_0  +  Σ φ W3_0 Δh2  +  Σ φ ΔW3 h2_0  +  Σ φ ΔW3 Δh2
                 init              propagating      effective        cross

where propagating is A21, made upstream (W3_0 [a(W2_0 h1) - a(W2_0 h1_0)]), plus A22, made by the experts' first layer
(W3_0 [a(W2 h1) - a(W2_0 h1)]). Backward, with δ what comes back to the sum, split into what W4_0 and what ΔW4 sent (.1
and .2), and D = φ a'(W2 h1):

    Σ W2ᵀ D W3ᵀ δ =  Σ W2_0ᵀ D W3_0ᵀ δ  +  Σ W2_0ᵀ D ΔW3ᵀ δ  +  Σ ΔW2ᵀ D W3_0ᵀ δ  +  Σ ΔW2ᵀ D ΔW3ᵀ δ
                     A4                    A5                   A6                   E

All sums are exact with any activation, soft and top-K. Experts are taken a few at a time: outputs of all of them,
M x tokens x width, never exist.

Shapes: R replicas, T tokens, N width, M experts (m of them at a time), E expert width, F rows of w_in (2E if gated).

The file also measures how the tokens of a layer spread over its experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mssp.measure.magnitudes import Sizes, rms, rms_of_products, total
from mssp.measure.quantities import (
    ACTIVATION,
    AGGREGATE,
    BACKWARD,
    BACKWARD_EFFECTIVE,
    BACKWARD_PROPAGATING,
    BY_START,
    BY_UPDATE,
    CHANGE,
    EFFECTIVE,
    EXPERT_DISTANCE,
    GATE_DERIVATIVE,
    GRADIENT,
    HIGHEST_SCORE,
    INIT,
    INPUT,
    INPUT_CHANGE,
    LARGEST_LOAD,
    LOWEST_SCORE,
    PROPAGATING,
    THROUGH_ROUTER,
    TO_GATES,
    TO_HIDDEN,
    UPDATE,
    UPDATED,
    WEIGHTS,
)
from mssp.nn.experts.paths import ExpertWeights
from mssp.nn.router import Routing

Hidden = Callable[[Tensor], Tensor]
FORWARD = ("init", "A21", "A22", "effective", "cross")
_SENT = (INIT, UPDATED)  # by W4_0, by ΔW4; a single part is the update's
_LARGEST = 2**22  # numbers in one tensor of a few experts' outputs


@dataclass(frozen=True)
class ExpertLayer:
    """A MoE layer at one moment.

    Args:
        x: what enters it, [R, T, N].
        router: Q, [R, M, N].
        weights: of the experts, with a leading axis R.
        pre: what enters the hidden units, [R, T, M, F].
        gates: φ without the aggregation factor, zero where an expert is not chosen, [R, T, M].
        aggregation: the factor, a number or [R, 1, 1].
    """

    x: Tensor
    router: Tensor
    weights: ExpertWeights
    pre: Tensor
    gates: Tensor
    aggregation: float | Tensor


class ExpertTerms:
    """What a MoE layer is made of, summed over its experts; it starts at zero for ``parts`` parts of δ.

    ``forward`` has the terms of the sum over experts, [R, T, N], by the names in ``FORWARD``. For each part of δ,
    ``backward`` has the terms of what goes back to the layer's input, by the terms of ``BACKWARD``, and ``to_gates``
    what goes back to the gates through W3_0 and through ΔW3, [R, T, M]. ``sizes`` are those of everything that is
    measured expert by expert.
    """

    def __init__(self, x: Tensor, parts: int) -> None:
        zeros, none = torch.zeros_like(x), x[..., :0]
        self.forward = dict.fromkeys(FORWARD, zeros)
        self.backward = [dict.fromkeys(BACKWARD.terms, zeros) for _ in range(parts)]
        self.to_gates = [(none, none) for _ in range(parts)]
        self._squares: dict[str, Tensor] = {}

    def count(self, name: str, size: Tensor, share: float | Tensor) -> None:
        """Add the size that a share of the experts has, or of their tokens."""
        self._squares[name] = self._squares.get(name, torch.zeros(())) + size.square() * share

    @property
    def sizes(self) -> Sizes:
        return {name: squares.sqrt() for name, squares in self._squares.items()}


def expert_terms(start: ExpertLayer, now: ExpertLayer, hidden: Hidden, backs: Sequence[Tensor]) -> ExpertTerms:
    """The terms of one layer. ``backs`` are the parts of δ, [R, T, N] each; there are none for the forward pass alone.

    A bias of the experts' second layer counts with its weights: b_0 with W3_0, Δb with ΔW3.
    """
    terms = ExpertTerms(now.x, len(backs))
    gates = now.gates * now.aggregation
    for chosen in _batches(now):
        batch = _ExpertBatch(start, now, gates, hidden, chosen)
        batch.forward(terms)
        batch.backward(terms, backs)
    b_0, b = start.weights.b_out, now.weights.b_out
    if b_0 is not None and b is not None:
        terms.forward["init"] = terms.forward["init"] + gates @ b_0
        terms.forward["effective"] = terms.forward["effective"] + gates @ (b - b_0)
        terms.to_gates = [
            (initial + back @ b_0.mT, update + back @ (b - b_0).mT)
            for back, (initial, update) in zip(backs, terms.to_gates, strict=True)
        ]
    terms.to_gates = [(initial * now.aggregation, update * now.aggregation) for initial, update in terms.to_gates]
    return terms


def moe_sizes(
    start: ExpertLayer,
    now: ExpertLayer,
    hidden: Hidden,
    backs: Mapping[str, Tensor],
    through_gate: Callable[[Tensor], Tensor],
    *,
    equal_shares: bool = False,
) -> Sizes:
    """Every size of one MoE layer but those of its router as a linear map.

    Args:
        hidden: what an expert makes of its first layer's outputs, which are its gate's before its up projection's.
        backs: the parts of δ by the readout's part that sent them: ``init`` (W4_0) and ``update`` (ΔW4).
        through_gate: from a gradient at the gates to that at the router's logits.
        equal_shares: gates sum to one, so that their derivative depends on the number of experts, and is measured too.
    """
    terms = expert_terms(start, now, hidden, list(backs.values()))
    forward = terms.forward
    sizes: Sizes = {AGGREGATE(name): rms(term) for name, term in forward.items()}
    sizes[AGGREGATE("propagating")] = rms(forward["A21"] + forward["A22"])
    sizes |= terms.sizes
    if not backs:
        return sizes
    part_of = {INIT: BY_START, UPDATED: BY_UPDATE}
    for name in BACKWARD.terms:
        parts = dict(zip(backs, (by_term[name] for by_term in terms.backward), strict=True))
        sizes[BACKWARD(name)] = rms(total(parts.values()))
        sizes |= {BACKWARD(name, part_of[sent]): rms(part) for sent, part in parts.items()}
    for sent, (initial, update) in zip(backs, terms.to_gates, strict=True):
        sizes |= {TO_GATES(INIT, sent): rms(initial), TO_GATES(UPDATED, sent): rms(update)}
    at_gates = [total(parts) for parts in zip(*terms.to_gates, strict=True)]
    at_logits = [through_gate(back) for back in at_gates]
    for expert, back in zip((INIT, UPDATED), at_logits, strict=True):
        sizes[THROUGH_ROUTER(INIT, expert)] = rms(back @ start.router)
        sizes[THROUGH_ROUTER(UPDATED, expert)] = rms(back @ (now.router - start.router))
    if equal_shares:
        taken = _takes(now.gates)
        of_chosen = rms(total(at_gates) * taken) * (taken[0].numel() / taken.flatten(1).sum(1)).sqrt()
        # Before the first update nothing comes back from a readout of zeros: 0, not 0/0.
        sizes[GATE_DERIVATIVE()] = rms(total(at_logits)) / of_chosen.clamp_min(torch.finfo(torch.float64).tiny)
    return sizes


def _takes(gates: Tensor) -> Tensor:
    """Which experts get which tokens, [R, T, M]. Gates of all may vanish in a model that diverges."""
    return (gates != 0) | (gates == 0).all(-1, keepdim=True)


def distance_between_experts(weights: ExpertWeights) -> Sizes:
    """The RMS of the difference between an expert and the next, over both layers: exactly 0 for tied experts.

    Nothing for a single expert.
    """
    if weights.experts == 1:
        return {}
    squares = [rms(stack[:, 1:] - stack[:, :-1]).square() for stack in (weights.w_in, weights.w_out)]
    return {EXPERT_DISTANCE(): (total(squares) / 2).sqrt()}


class _ExpertBatch:
    """A few experts of a layer, as a batch of matrices."""

    def __init__(self, start: ExpertLayer, now: ExpertLayer, gates: Tensor, hidden: Hidden, chosen: slice) -> None:
        self.start, self.now, self._hidden = start, now, hidden
        self.gated = now.weights.gated
        self.in_0, self.out_0 = start.weights.w_in[:, chosen], start.weights.w_out[:, chosen]
        self.out = now.weights.w_out[:, chosen]
        self.d_in, self.d_out = now.weights.w_in[:, chosen] - self.in_0, self.out - self.out_0
        # Experts before tokens: [R, m, T, ...].
        self.gates = gates[..., chosen].transpose(1, 2).unsqueeze(-1)
        self.pre_0 = start.pre[..., chosen, :].transpose(1, 2)
        self.pre = now.pre[..., chosen, :].transpose(1, 2)
        b_out = now.weights.b_out
        self.bias = 0.0 if b_out is None else b_out[:, chosen].unsqueeze(2)
        self.experts = self.in_0.shape[1]
        self.share = self.experts / now.gates.shape[-1]
        # What an expert would do to tokens that it does not get is no part of the model.
        takes = _takes(gates)
        self._takes = takes[..., chosen].transpose(1, 2).unsqueeze(-1)
        self._taken = self._takes.flatten(1).sum(1).double()
        self._share_of_tokens = self._taken / takes.flatten(1).sum(1)

    def forward(self, terms: ExpertTerms) -> None:
        now, start = self.now, self.start
        by_input, by_weights = self._into_experts(now.x - start.x, self.in_0), self._into_experts(now.x, self.d_in)
        before, between = self._hidden(self.pre_0), self._hidden(self.pre_0 + by_input)
        self.hidden = self._hidden(self.pre)
        # Everything that passes through one matrix passes at once, so that the matrix is read once.
        initial = [before, between - before, self.hidden - between]
        later = [before, self.hidden - before]
        sent = [*self._summed(initial, self.out_0), *self._summed(later, self.d_out)]
        for name, term in zip(FORWARD, sent, strict=True):
            terms.forward[name] = terms.forward[name] + term
        of_tokens = {
            PROPAGATING("expert_in"): by_input,
            EFFECTIVE("expert_in"): by_weights,
            PROPAGATING("expert_out"): (self.hidden - before) @ self.out_0,
            EFFECTIVE("expert_out"): self.hidden @ self.d_out,
            ACTIVATION("expert_in"): self.pre,
            ACTIVATION("expert_out"): self.hidden @ self.out + self.bias,
            CHANGE("expert_in"): self.pre - self.pre_0,
            INPUT("expert_out"): self.hidden,
            INPUT_CHANGE("expert_out"): self.hidden - before,
            INPUT("aggregate"): self.gates * self.hidden,
        }
        for name, term in of_tokens.items():
            terms.count(name, self._over_own_tokens(term), self._share_of_tokens)
        per_expert = {
            INPUT("expert_in"): now.x,
            INPUT_CHANGE("expert_in"): now.x - start.x,
            WEIGHTS("expert_in"): self.in_0,
            WEIGHTS("expert_out"): self.out_0,
            UPDATE("expert_in"): self.d_in,
            UPDATE("expert_out"): self.d_out,
        }
        for name, term in per_expert.items():
            terms.count(name, rms(term), self.share)

    def backward(self, terms: ExpertTerms, backs: Sequence[Tensor]) -> None:
        if not backs:
            return
        slopes = self._slopes()
        # What comes back to the hidden units through W3_0 and ΔW3, for each part of δ: [R, m, T, E].
        through_0 = [self._into_experts(back, self.out_0) for back in backs]
        through_d = [self._into_experts(back, self.d_out) for back in backs]
        to_pre = []
        for part, (by_0, by_d) in enumerate(zip(through_0, through_d, strict=True)):
            to_gates = [(by * self.hidden).sum(-1).transpose(1, 2) for by in (by_0, by_d)]
            initial, update = terms.to_gates[part]
            terms.to_gates[part] = torch.cat([initial, to_gates[0]], -1), torch.cat([update, to_gates[1]], -1)
            both = [self._to_pre(self.gates * by, slopes) for by in (by_0, by_d)]
            sent = [*self._summed(both, self.in_0, gated=False), *self._summed(both, self.d_in, gated=False)]
            for name, term in zip(BACKWARD.terms, sent, strict=True):
                terms.backward[part][name] = terms.backward[part][name] + term
            to_pre.append(both[0] + both[1])
        back_to_pre, back = total(to_pre), total(backs).unsqueeze(1)
        per_expert = {
            BACKWARD_PROPAGATING("expert_out"): self.gates * total(through_0),
            BACKWARD_EFFECTIVE("expert_out"): self.gates * total(through_d),
            BACKWARD_PROPAGATING("expert_in"): back_to_pre @ self.in_0,
            BACKWARD_EFFECTIVE("expert_in"): back_to_pre @ self.d_in,
        }
        for sender, by_0, by_d in zip(_SENT[-len(backs) :], through_0, through_d, strict=True):
            per_expert[TO_HIDDEN(INIT, sender)] = self.gates * by_0
            per_expert[TO_HIDDEN(UPDATED, sender)] = self.gates * by_d
        for name, term in per_expert.items():
            terms.count(name, rms(term), self.share)
        tokens, shape = self.now.x.shape[1], (-1, self.experts, -1, -1)
        of_in = rms_of_products(back_to_pre, self.now.x.unsqueeze(1).expand(shape))
        of_out = rms_of_products(self.gates * self.hidden, back.expand(shape))
        terms.count(GRADIENT("expert_in"), of_in / tokens, self.share)
        terms.count(GRADIENT("expert_out"), of_out / tokens, self.share)

    def _into_experts(self, x: Tensor, weights: Tensor) -> Tensor:
        """What all of them make of one input [R, T, N] by weights [R, m, E, N]: [R, m, T, E], as one product."""
        wide: Tensor = x @ weights.flatten(1, 2).mT
        return wide.view(*wide.shape[:2], self.experts, -1).transpose(1, 2)

    def _summed(self, hidden: Sequence[Tensor], weights: Tensor, *, gated: bool = True) -> Sequence[Tensor]:
        """The sums over experts of what several hidden units [R, m, T, E] send through weights [R, m, E, N]."""
        rows = torch.cat([self.gates * units if gated else units for units in hidden], 2)
        wide = rows.transpose(1, 2).flatten(2) @ weights.flatten(1, 2)
        return wide.chunk(len(hidden), 1)

    def _over_own_tokens(self, term: Tensor) -> Tensor:
        """The size of what experts make of their tokens, over those tokens: term [R, m, T, ...] to [R]."""
        pairs = self._takes[0].numel()
        # A GPU's recorded graph cannot ask; there the product costs less than the answer.
        if term.device.type == "cpu" and bool((self._taken == pairs).all()):
            return rms(term)
        return rms(term * self._takes) * (pairs / self._taken.clamp_min(1)).sqrt()

    def _slopes(self) -> Tensor:
        """The derivative of each hidden unit in each of its inputs, [R, m, T, F]."""
        with torch.enable_grad():
            pre = self.pre.detach().requires_grad_()
            return torch.autograd.grad(self._hidden(pre).sum(), pre)[0]

    def _to_pre(self, back: Tensor, slopes: Tensor) -> Tensor:
        return torch.cat([back, back], -1) * slopes if self.gated else back * slopes


def _batches(layer: ExpertLayer) -> Iterator[slice]:
    """Experts a few at a time, so that a tensor of their outputs stays small."""
    R, T, M = layer.gates.shape
    at_once = max(_LARGEST // (R * T * layer.x.shape[-1]), 1)
    return (slice(first, first + at_once) for first in range(0, M, at_once))


def routing_sizes(routings: Sequence[Routing]) -> Sizes:
    """The paper's router concentration, and the largest load times the number of experts (1 where all are equal).

    ``routings`` are those of R replicas.
    """
    statistics = [routing.statistics() for routing in routings]
    sizes = {
        HIGHEST_SCORE(): [replica.highest for replica in statistics],
        LOWEST_SCORE(): [replica.lowest for replica in statistics],
        LARGEST_LOAD(): [replica.loads.max() * len(replica.loads) for replica in statistics],
    }
    return {name: torch.stack(values).double() for name, values in sizes.items()}
