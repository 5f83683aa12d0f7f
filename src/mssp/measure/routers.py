"""Finds the routers of any model, and adds up statistics of what they do with the training batches.

Sums are kept on the routers' devices and read all at once, so that a step is not held up. A pass in evaluation mode
does not count, nor does one that is repeated in the backward pass (activation checkpointing).

Shapes: T tokens, M experts, K active.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mssp.apply.description import name_cleaner
from mssp.hf import experts
from mssp.hf.probing import SIGMOID, SOFTMAX, Probed, gates_of
from mssp.measure.recording import main_output
from mssp.nn.mlp import MLPMoE, Multipliers, forward, routing
from mssp.nn.router import Router, Routing

_OF_TOKENS = ("logits", "spread", "z", "entropy", "sensitivity")


class RoutingSums:
    """Sums over the tokens that a router has seen since :meth:`clear`.

    >>> sums = RoutingSums(experts=2, active=1, score="softmax", device="cpu")
    >>> sums.add(torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[0], [0]]))
    >>> read = sums.means(sums.totals().tolist())
    >>> read["tokens"], round(read["entropy"], 3), sums.loads(sums.totals().tolist())
    (2.0, 0.638, [1.0, 0.0])

    Args:
        score: ``softmax`` or ``sigmoid``: what makes a score of a logit.
        inverse_temperature: what logits are multiplied by before.
    """

    def __init__(
        self, experts: int, active: int, score: str, device: torch.device | str, inverse_temperature: float = 1.0
    ) -> None:
        self.experts, self.active, self.score = experts, active, score
        self._beta = inverse_temperature
        self._tokens = torch.zeros(1 + len(_OF_TOKENS), dtype=torch.float32, device=device)
        self._pairs = torch.zeros(experts, dtype=torch.float32, device=device)

    @torch.no_grad()
    def add(self, logits: Tensor, chosen: Tensor | None) -> None:
        """Add tokens [..., M] with the numbers of their experts [..., K]; None stands for all experts."""
        logits = logits.detach().reshape(-1, logits.shape[-1]).float()
        sharpened = logits * self._beta
        sigmoids = self.score == SIGMOID
        # The distribution of sigmoids is theirs over their sum, as in ``route``.
        probabilities = (nn.functional.logsigmoid(sharpened) if sigmoids else sharpened).softmax(-1)
        if sigmoids:
            slopes = sharpened.sigmoid() * (-sharpened).sigmoid() * 4
            slopes = slopes if chosen is None else slopes.gather(-1, chosen.reshape(len(logits), -1))
            sensitivity = slopes.mean(-1)
        else:
            sensitivity = (1 - probabilities.square().sum(-1)) / max(1 - 1 / self.experts, 1e-6)
        of_tokens = (
            logits.square().mean(-1),
            (sharpened - sharpened.mean(-1, keepdim=True)).square().mean(-1),
            logits.logsumexp(-1).square(),
            torch.special.entr(probabilities).sum(-1),
            sensitivity,
        )
        self._tokens.add_(torch.stack([torch.ones_like(sensitivity), *of_tokens], -1).sum(0))
        if chosen is not None:
            marks = torch.zeros_like(logits).scatter(-1, chosen.reshape(len(logits), -1), 1.0)
            self._pairs.add_(marks.sum(0))

    def clear(self) -> None:
        self._tokens.zero_()
        self._pairs.zero_()

    def totals(self) -> Tensor:
        """Everything in one tensor, for :meth:`means` and :meth:`loads`."""
        return torch.cat([self._tokens, self._pairs])

    def means(self, totals: Sequence[float]) -> dict[str, float]:
        """Means over tokens: ``logits`` and ``spread`` as root mean squares, ``entropy`` as a share of log M.

        ``spread`` is over experts, so that what all logits share is not in it. ``sensitivity`` says how much gates
        still follow logits: 1 at logits of zero, 0 where they are saturated.
        """
        tokens = max(totals[0], 1.0)
        means = {name: total / tokens for name, total in zip(_OF_TOKENS, totals[1:], strict=False)}
        means["entropy"] /= math.log(max(self.experts, 2))
        return means | {name: _root(means[name]) for name in ("logits", "spread")} | {"tokens": totals[0]}

    def loads(self, totals: Sequence[float]) -> list[float]:
        """The share of all pairs that each expert got; nothing where there were no pairs to count."""
        pairs = totals[1 + len(_OF_TOKENS) :]
        all_pairs = sum(pairs)
        return [each / all_pairs for each in pairs] if all_pairs else []


@dataclass(frozen=True, eq=False)
class WatchedRouter:
    """A router, and the sums of what it does.

    Args:
        name: the path of its layer.
        weight: its matrix [M, N].
        attach: puts the hooks on that fill ``sums``, while a function says that they are to be filled.
    """

    name: str
    weight: nn.Parameter
    sums: RoutingSums
    attach: Callable[[Callable[[], bool]], list[RemovableHandle]]


def watched_routers(model: nn.Module, active: int) -> list[WatchedRouter]:
    """Every router of a model. ``active`` is the number of experts per token where a router does not say it."""
    clean = name_cleaner(model)
    found: list[WatchedRouter] = []
    for path, module in model.named_modules():
        if isinstance(module, Router):
            found.append(_of_own(clean(path), module))
        elif isinstance(module, MLPMoE):
            found += _of_mlp(clean(path), module)
    probe = Probed(gates_of)
    for path, module in model.named_modules():
        if experts.is_fused(module):
            with contextlib.suppress(ValueError):  # a router that is not understood
                found.append(_of_stack(experts.moe_layer(model, path, clean), probe, active))
    for numbered in experts.numbered_layers(model):
        found.append(_of_modules(numbered, active))
    return found


def _of_own(name: str, router: Router) -> WatchedRouter:
    held = RoutingSums(len(router.weight), router.active, router.gate, router.weight.device, router.inverse_temperature)
    soft = router.active == len(router.weight)

    def attach(wanted: Callable[[], bool]) -> list[RemovableHandle]:
        def watch(module: nn.Module, args: Any, output: Routing) -> None:
            if module.training and wanted():
                held.add(output.logits, None if soft else output.chosen)

        return [router.register_forward_hook(watch)]

    return WatchedRouter(name.removesuffix(".router"), router.weight, held, attach)


def _of_mlp(name: str, model: MLPMoE) -> Iterator[WatchedRouter]:
    """The routers of an MLP MoE, a function of its parameters: its forward pass is run again, without noise."""
    config, own = model.config, dict(model.named_parameters())
    for block in range(config.blocks):
        path = f"blocks.{block}"
        weight = own[f"{path}.router"]
        held = RoutingSums(config.experts, config.shape.active, config.gate, weight.device, config.inverse_temperature)

        def attach(wanted: Callable[[], bool], held: RoutingSums = held, path: str = path) -> list[RemovableHandle]:
            @torch.no_grad()
            def watch(module: MLPMoE, args: tuple[Tensor, ...], output: Tensor) -> None:
                if module.training and wanted():
                    factors = Multipliers(module.aggregation, module.residual)
                    logits = forward(own, args[0], config, factors)[f"{path}.router"]
                    held.add(logits, None if config.soft else routing(logits, config).chosen)

            return [model.register_forward_hook(watch)]

        yield WatchedRouter(f"{name}.{path}" if name else path, weight, held, attach)


def _of_stack(moe: experts.FusedMoE, probe: Probed[Any], active: int) -> WatchedRouter:
    matrix = moe.matrix_module
    weight = matrix.get_parameter("weight")
    try:
        gates = moe.gates(probe)
        score, count = gates.score, gates.chosen
    except ValueError:  # gates of a kind for which there is no rule
        score, count = SOFTMAX, active
    held = RoutingSums(len(weight), count, score, weight.device)
    # Logits come from the router, and where a token goes is what the experts are called with.
    waiting: list[Tensor] = []

    def attach(wanted: Callable[[], bool]) -> list[RemovableHandle]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if module.training and wanted():
                waiting[:] = [main_output(output).detach()]

        def watch(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            if module.training and wanted() and waiting:
                logits = waiting.pop()
                held.add(logits, _chosen([*args, *kwargs.values()], logits, count))

        before = moe.summing.register_forward_pre_hook(watch, with_kwargs=True)
        return [matrix.register_forward_hook(keep), before]

    return WatchedRouter(moe.name, weight, held, attach)


def _of_modules(moe: experts.NumberedMoE, active: int) -> WatchedRouter:
    """The router of experts that are modules of their own: where tokens go is taken to be by the largest logits."""
    matrix = next(module for module in moe.router.modules() if "weight" in module._parameters)
    weight = matrix.get_parameter("weight")
    score = SIGMOID if getattr(moe.router, "gate_kind", "") == SIGMOID else SOFTMAX
    held = RoutingSums(len(weight), active, score, weight.device)

    def attach(wanted: Callable[[], bool]) -> list[RemovableHandle]:
        def watch(module: nn.Module, args: Any, output: Any) -> None:
            if module.training and wanted():
                logits = main_output(output)
                held.add(logits, _chosen([], logits, active))

        return [matrix.register_forward_hook(watch)]

    return WatchedRouter(moe.name, weight, held, attach)


def _chosen(arguments: Sequence[Any], logits: Tensor, count: int) -> Tensor | None:
    """The numbers of the chosen experts among what experts were called with, or those of the largest logits."""
    if count >= logits.shape[-1]:
        return None
    for each in arguments:
        if isinstance(each, Tensor) and not each.is_floating_point() and each.numel() == logits[..., 0].numel() * count:
            return each
    return logits.topk(count, -1).indices


def repeated_in_backward() -> bool:
    """Whether a forward pass runs inside a backward pass, as activation checkpointing runs it again."""
    return torch._C._current_graph_task_id() != -1


def _root(mean: float) -> float:
    return math.sqrt(mean) if mean >= 0 else mean
