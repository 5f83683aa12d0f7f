"""Finds out by running a module once at which weight a norm is neutral, and how a router makes gates.

No name tells either. The module runs on inputs and weights that are made here, so its own parameters stay as they are,
and may be on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

GATE_KINDS = (SIGMOID, SOFTMAX, RENORMALISED) = ("sigmoid", "softmax", "renormalised")
Found = TypeVar("Found")
_TOKENS = 64
_TOLERANCE = 1e-3


def neutral_gain(norm: nn.Module, name: str) -> float:
    """The weight at which a norm multiplies by one: 1, or 0 where it multiplies by 1 + weight.

    >>> neutral_gain(nn.RMSNorm(8), "norm")
    1.0
    """
    size = norm.get_parameter("weight").numel()
    _check_size(norm, name, size)
    x = _normals(_TOKENS, size)
    at_1, at_2 = (_run(norm, {"weight": float(weight)}, [(x,), (x, torch.ones_like(x))], name) for weight in (1, 2))
    ratio = (at_2 / at_1)[at_1.abs() > _TOLERANCE]
    for start, expected in ((1.0, 2.0), (0.0, 1.5)):
        if torch.allclose(ratio, torch.full_like(ratio, expected), atol=_TOLERANCE):
            return start
    raise ValueError(f"{name} multiplies neither by its weight nor by 1 + weight, and where to start it is not known")


class Probed(Generic[Found]):
    """What a probe finds out of many modules. Modules that must compute the same are run once.

    Two modules share a run if their class agrees, the names, shapes and types of their tensors, every attribute, and
    the modules inside. Plain values agree by value, other objects only if they are the same object. A module with
    hooks, or with one inside that has hooks, is always run itself.

    The last argument of a call is the module's name, for error messages.
    """

    def __init__(self, probe: Callable[..., Found]) -> None:
        self._probe = probe
        self._found: dict[Any, Found] = {}

    def __call__(self, module: nn.Module, *arguments: Any) -> Found:
        state = _state(module)
        if state is None:
            return self._probe(module, *arguments)
        key = (state, arguments[:-1])
        if key not in self._found:
            self._found[key] = self._probe(module, *arguments)
        return self._found[key]


def _state(module: nn.Module) -> Any:
    """All that a forward pass depends on besides the numbers in tensors; None if hooks add to it."""
    if any(hooks for name, hooks in vars(module).items() if name.endswith("_hooks")):
        return None
    inside = [None if part is None else _state(part) for part in module._modules.values()]
    if any(state is None and part is not None for state, part in zip(inside, module._modules.values(), strict=True)):
        return None
    tensors = [*module._parameters.items(), *module._buffers.items()]
    return (
        type(module),
        *((name, None if tensor is None else (tuple(tensor.shape), tensor.dtype)) for name, tensor in tensors),
        *((name, _comparable(value)) for name, value in vars(module).items() if name not in _ATTRIBUTES_OF_ALL),
        *zip(module._modules, inside, strict=True),
    )


_MOST_NUMBERS = 2**27  # of a norm or a router: one with 16,384 neurons and 4,096 experts has half as many
# The attributes of every module. Tensors and hooks are compared separately, and the others only decide what is saved.
_ATTRIBUTES_OF_ALL = frozenset(vars(nn.Module())) - {"training"}
_PLAIN = (bool, int, float, str, type(None), torch.dtype)


def _comparable(value: object) -> Any:
    """Stands for a value: two of these are equal if both values are plain and equal, or are the same object."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, tuple):
        return type(value), *map(_comparable, value)
    return id(value)


class TooLargeError(ValueError):
    """A module that no machine of usual size can run once."""


@dataclass(frozen=True)
class Gates:
    """How a router makes gates.

    Args:
        kind: ``sigmoid``, ``softmax`` (over all experts), or ``renormalised``, where the gates of the chosen experts
            sum to 1 or to another constant.
        score: ``sigmoid`` or ``softmax``: the scores that are renormalised, or the kind itself.
    """

    kind: str
    score: str


def gates_of(router: nn.Module, width: int, experts: int, name: str) -> Gates:
    """How a router that returns (logits, gates, chosen) makes gates."""
    _check_size(router, name, max(width, experts))
    x = _normals(_TOKENS, width)
    bias = torch.zeros(experts, device="cpu", dtype=torch.float32)
    calls = [(x,), (x, bias), (x.unsqueeze(0),), (x.unsqueeze(0), bias)]
    returned = _run(router, {"weight": None}, calls, name)
    tensors = returned if isinstance(returned, tuple) and len(returned) == 3 else ()
    if not tensors or not all(isinstance(x, Tensor) for x in tensors) or tensors[2].is_floating_point():
        raise ValueError(f"{name} does not return (logits, gates, chosen): how it makes gates is not known")
    logits, gates, chosen = tensors
    # Renormalised gates are the scores times a number that is the same for all experts of a token.
    renormalised = _constant(gates.sum(-1), over_tokens=True)
    for score, scores in ((SOFTMAX, logits.softmax(-1)), (SIGMOID, logits.sigmoid())):
        if _constant(gates / scores.gather(-1, chosen), over_tokens=not renormalised):
            return Gates(RENORMALISED if renormalised else score, score)
    raise ValueError(f"{name} makes gates that are none of {SIGMOID}, {SOFTMAX} and {RENORMALISED}: there is no rule")


def _constant(x: Tensor, over_tokens: bool) -> bool:
    """Whether a tensor [tokens, ...] holds the same number everywhere; within each token, unless ``over_tokens``."""
    mean = x.mean() if over_tokens else x.mean(-1, keepdim=True)
    return torch.allclose(x, mean.expand_as(x), rtol=_TOLERANCE)


def _check_size(module: nn.Module, name: str, width: int = 1) -> None:
    """Refuse a module that would take gigabytes to run, where one of any real model takes megabytes.

    Args:
        width: the larger side of what goes in and comes out, for every token.
    """
    size = max(_TOKENS * width, sum(tensor.numel() for tensor in (*module.parameters(), *module.buffers())))
    if size > _MOST_NUMBERS:
        raise TooLargeError(f"{name} has {size:,} numbers: more than {_MOST_NUMBERS:,} are too many to run it once")


def _run(module: nn.Module, weights: dict[str, float | None], calls: Sequence[tuple[Tensor, ...]], name: str) -> Any:
    """What the module returns for the first of the calls that raises no error.

    Parameters with a name in ``weights`` hold that value (None: random numbers), other parameters and buffers hold 0.
    """
    _check_size(module, name)
    state = {}
    for key, tensor in (*module.named_parameters(), *module.named_buffers()):
        value = weights.get(key.rpartition(".")[2], 0.0)
        shape = tuple(tensor.shape)
        # Not the seed of the inputs: a token that equals an expert's row of the router would saturate its gate.
        normals = _normals(*shape, seed=1)
        state[key] = normals / shape[-1] ** 0.5 if value is None else torch.full_like(normals, value)
        if not tensor.is_floating_point():
            state[key] = state[key].to(tensor.dtype)
    failure: Exception | None = None
    # The caller's device and autocast do not apply here, and torch's random states stay as they are.
    with (
        torch.no_grad(),
        torch.device("cpu"),
        torch.autocast("cpu", enabled=False),
        torch.random.fork_rng(devices=[]),
    ):
        for args in calls:
            try:
                return functional_call(module, state, args)
            except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
                failure = failure or error  # the module may have another signature: try the next call
    raise ValueError(f"{name} ({type(module).__name__}) does not run on a batch of vectors: {failure}")


def _normals(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)
