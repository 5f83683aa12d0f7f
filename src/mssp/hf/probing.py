"""What a foreign module does, found out by running it once on numbers of our own: where its gain is neutral, how its
router makes gates. Neither is read off a name, and the module itself is not touched: its parameters stay where they
are, on the meta device too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

GATE_KINDS = (SIGMOID, SOFTMAX, RENORMALISED) = ("sigmoid", "softmax", "renormalised")
_TOKENS = 64
_TOLERANCE = 1e-3


def neutral_gain(norm: nn.Module, name: str) -> float:
    """The weight at which a norm multiplies by one: 1, or 0 where it multiplies by 1 + weight.

    >>> neutral_gain(nn.RMSNorm(8), "norm")
    1.0
    """
    size = norm.get_parameter("weight").numel()
    x = _normals(_TOKENS, size)
    by_one, by_two = (_run(norm, {"weight": float(weight)}, [(x,), (x, torch.ones_like(x))], name) for weight in (1, 2))
    ratio = (by_two / by_one)[by_one.abs() > _TOLERANCE]
    for start, expected in ((1.0, 2.0), (0.0, 1.5)):
        if torch.allclose(ratio, torch.full_like(ratio, expected), atol=_TOLERANCE):
            return start
    raise ValueError(f"{name} multiplies neither by its weight nor by 1 + weight, and where to start it is not known")


class NeutralGains:
    """The neutral gains of many norms: those that cannot but compute the same are run once.

    Two norms share a run where their class, the names, shapes and types of their tensors and every attribute agree:
    plain values by value, other objects only where both norms hold the very same one. A norm with hooks, or with
    modules inside, is always run itself.
    """

    def __init__(self) -> None:
        self._known: dict[Any, float] = {}

    def __call__(self, norm: nn.Module, name: str) -> float:
        state = _state(norm)
        if state is None:
            return neutral_gain(norm, name)
        if state not in self._known:
            self._known[state] = neutral_gain(norm, name)
        return self._known[state]


def _state(module: nn.Module) -> Any:
    """All that a module's forward pass depends on, but for the numbers in its tensors; None where more has a say."""
    if module._modules or any(held for name, held in vars(module).items() if name.endswith("_hooks")):
        return None
    tensors = [*module._parameters.items(), *module._buffers.items()]
    return (
        type(module),
        *((name, None if held is None else (tuple(held.shape), held.dtype)) for name, held in tensors),
        *((name, _comparable(held)) for name, held in vars(module).items() if name not in _TORCHS_OWN),
    )


# What every module has: tensors and hooks are looked at by themselves, and the rest decides what is saved.
_TORCHS_OWN = frozenset(vars(nn.Module())) - {"training"}
_PLAIN = (bool, int, float, str, type(None), torch.dtype)


def _comparable(held: object) -> Any:
    if isinstance(held, _PLAIN):
        return type(held), held
    if isinstance(held, tuple):
        return type(held), *map(_comparable, held)
    return id(held)


@dataclass(frozen=True)
class Gates:
    """How a router makes gates.

    Args:
        kind: ``sigmoid``, ``softmax`` (of all experts), or ``renormalised``: shares of one, or of another constant,
            among the chosen.
        score: what is renormalised: ``sigmoid`` or ``softmax``; the kind itself otherwise.
    """

    kind: str
    score: str


def gates_of(router: nn.Module, width: int, experts: int, name: str) -> Gates:
    """How a router that returns (logits, gates, chosen) makes gates."""
    x = _normals(_TOKENS, width)
    bias = torch.zeros(experts, device="cpu", dtype=torch.float32)
    calls = [(x,), (x, bias), (x.unsqueeze(0),), (x.unsqueeze(0), bias)]
    found = _run(router, {"weight": None}, calls, name)
    tensors = found if isinstance(found, tuple) and len(found) == 3 else ()
    if not all(isinstance(each, Tensor) for each in tensors) or not tensors or tensors[2].is_floating_point():
        raise ValueError(f"{name} does not return (logits, gates, chosen): how it makes gates is not known")
    logits, gates, chosen = tensors
    # Whatever is renormalised, its gates are the scores times something that is the same for all experts of a token.
    shares = _constant(gates.sum(-1), over_tokens=True)
    for score, scores in ((SOFTMAX, logits.softmax(-1)), (SIGMOID, logits.sigmoid())):
        if _constant(gates / scores.gather(-1, chosen), over_tokens=not shares):
            return Gates(RENORMALISED if shares else score, score)
    raise ValueError(f"{name} makes gates that are none of {SIGMOID}, {SOFTMAX} and {RENORMALISED}: there is no rule")


def _constant(x: Tensor, over_tokens: bool) -> bool:
    """Whether a tensor [tokens, ...] holds one number, or at least one number for each token."""
    mean = x.mean() if over_tokens else x.mean(-1, keepdim=True)
    return torch.allclose(x, mean.expand_as(x), rtol=_TOLERANCE)


def _run(module: nn.Module, weights: dict[str, float | None], calls: Sequence[tuple[Tensor, ...]], name: str) -> Any:
    """The module on numbers of our own: named weights at a value (None: random), other parameters and buffers at 0."""
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    state = {}
    for key, tensor in held.items():
        value = weights.get(key.rpartition(".")[2], 0.0)
        shape = tuple(tensor.shape)
        normals = _normals(*shape, seed=1)  # not those of the inputs: a token that is an expert's row saturates gates
        state[key] = normals / shape[-1] ** 0.5 if value is None else torch.full_like(normals, value)
        if not tensor.is_floating_point():
            state[key] = state[key].to(tensor.dtype)
    failure: Exception | None = None
    # Whatever the defaults are around us: a default dtype, a default device, autocast; and no trace in random states.
    with (
        torch.no_grad(),
        torch.device("cpu"),
        torch.autocast("cpu", enabled=False),
        torch.random.fork_rng(devices=[]),
    ):
        for args in calls:
            try:
                return functional_call(module, state, args)
            except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:  # another signature
                failure = failure or error
    raise ValueError(f"{name} ({type(module).__name__}) does not run on a batch of vectors: {failure}")


def _normals(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)
