"""Finds out by running a module once at which weight a norm is neutral, and how a router makes gates.

No name tells either. The module runs on inputs and weights that are made here, so its own parameters stay as they are,
and may be on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
        kind: ``renormalised`` if the gates of the chosen experts are shares of a number that is the same for all
            tokens, whatever else has a share (shared experts may), ``softmax`` if they are shares of one over all
            experts, ``sigmoid`` if each is of order one by itself. The sum over experts grows with their number in
            the last case alone, so that this decides which factor the sum takes.
        score: ``softmax``, or ``sigmoid`` for any function of an expert's own logit: what becomes a gate.
        chosen: how many experts a token is sent to.
        beside: how many parts beside the chosen experts have a gate that is a share of the same number, as shared
            experts may.
    """

    kind: str
    score: str
    chosen: int
    beside: int = 0


def gates_of(
    router: nn.Module,
    width: int,
    outputs: int,
    name: str,
    layer: nn.Module | None = None,
    experts: nn.Module | None = None,
) -> Gates:
    """How a router makes gates, or the layer around it, of which a part ``experts`` is then called with them.

    A router returns (logits, gates, chosen), or gates of all experts, which are zero for those that are not chosen, and
    logits, in any order. If it returns logits alone, the layer makes the gates.
    """
    _check_size(router, name, max(width, outputs))
    x = _normals(_TOKENS, width)
    bias = torch.zeros(outputs, device="cpu", dtype=torch.float32)
    calls = [(x,), (x, bias), (x.unsqueeze(0),), (x.unsqueeze(0), bias)]
    returned = _run(router, {"weight": None}, calls, name)
    read = _routing(returned)
    if read is None and isinstance(returned, Tensor) and layer is not None and experts is not None:
        handed = _handed_to(experts, layer, router, x, name)
        read = _routing((returned, *handed)) or _routing((returned, *handed[::-1]))
    if read is None and isinstance(returned, Tensor) and layer is None:
        raise LogitsAloneError(f"{name} does not return (logits, gates, chosen): how it makes gates is not known")
    if read is None:
        raise ValueError(f"{name} does not return (logits, gates, chosen): how it makes gates is not known")
    return _gates(*(tensor.flatten(0, -2) for tensor in read), name=name)


def _routing(returned: Any) -> tuple[Tensor, ...] | None:
    """Logits, gates and the chosen of every token, if these are what was returned, and what follows them."""
    tensors = [each for each in returned if isinstance(each, Tensor)] if isinstance(returned, tuple) else []
    if len(tensors) > 2 and not tensors[2].is_floating_point() and tensors[1].shape == tensors[2].shape:
        return tuple(tensors)
    if len(tensors) == 2 and tensors[0].shape == tensors[1].shape and tensors[0].is_floating_point():
        for gates, logits in (tensors, tensors[::-1]):
            counts = (gates != 0).sum(-1)
            if gates.min() == 0 and counts.min() == counts.max() > 0:
                chosen = gates.topk(int(counts.max()), -1).indices
                return logits, gates.gather(-1, chosen), chosen
    return None


class LogitsAloneError(ValueError):
    """A router that leaves it to the layer around it to make gates."""


class _ReachedError(Exception):
    """Raised in place of running the experts, which may be on the meta device."""


def _handed_to(experts: nn.Module, layer: nn.Module, router: nn.Module, x: Tensor, name: str) -> list[Tensor]:
    """The tensors that a layer calls its experts with, apart from those of the size of its input."""
    handed: list[Tensor] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        handed.extend(each for each in found if each.numel() != x.numel())
        raise _ReachedError

    hook = experts.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        [prefix] = [f"{path}." for path, module in layer.named_modules() if module is router]
        state = {f"{prefix}{key}": tensor for key, tensor in _made_up(router, {"weight": None}).items()}
        for args in ((x,), (x.unsqueeze(0),)):
            with suppress(_ReachedError, TypeError, ValueError, RuntimeError, IndexError), _without_noise(layer):
                functional_call(layer, state, args)
            if handed:
                return handed
    finally:
        hook.remove()
    raise ValueError(f"{name} returns logits alone, and what the layer around it makes of them is not known")


def _gates(logits: Tensor, gates: Tensor, chosen: Tensor, *more: Tensor, name: str) -> Gates:
    """Which kind of gates these are: [tokens, experts], [tokens, chosen] twice, and gates of other parts, if any."""
    active = chosen.shape[-1]
    are_probabilities = bool((logits >= 0).all()) and torch.allclose(logits.sum(-1), torch.ones_like(logits[:, 0]))
    shares = logits if are_probabilities else logits.softmax(-1)
    scores = [(SOFTMAX, shares), (SIGMOID, logits.sigmoid()), (SIGMOID, nn.functional.softplus(logits).sqrt())]
    ratios = [(score, gates / of_all.gather(-1, chosen)) for score, of_all in scores]
    others = [other for other in more if len(other) == len(gates)]
    alone = _constant(gates.sum(-1), over_tokens=True)
    with_others = [other for other in others if _constant(gates.sum(-1) + other.sum(-1), over_tokens=True)]
    renormalised, beside = alone or bool(with_others), 0 if alone or not with_others else with_others[0].shape[-1]
    # Renormalised gates are the scores times a number that is the same for all experts of a token.
    for score, ratio in ratios:
        if _constant(ratio, over_tokens=not renormalised):
            return Gates(RENORMALISED if renormalised else score, score, active, beside)
    if _are_shares_of_the_best(logits, gates, chosen):
        return Gates(SIGMOID, SOFTMAX, active)
    raise ValueError(f"{name} makes gates that are none of {SIGMOID}, {SOFTMAX} and {RENORMALISED}: there is no rule")


def _are_shares_of_the_best(logits: Tensor, gates: Tensor, chosen: Tensor) -> bool:
    """Whether each gate is the share of a chosen expert among the best of those that are left (SparseMixer).

    How many these are may differ from token to token. The next choice is made without the experts chosen before, so
    that each gate is of order one by itself.
    """
    left = logits.clone()
    for gate, expert in zip(gates.unbind(-1), chosen.unbind(-1), strict=True):
        best = left.sort(-1, descending=True)
        if not torch.equal(best.indices[:, 0], expert):
            return False
        share = 1 / (best.values - best.values[:, :1]).exp().cumsum(-1)
        if not torch.isclose(share, gate[:, None], rtol=_TOLERANCE).any(-1).all():
            return False
        left.scatter_(-1, expert[:, None], -torch.inf)
    return True


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

    Parameters hold what :func:`_made_up` gives them.
    """
    _check_size(module, name)
    state = _made_up(module, weights)
    failure: Exception | None = None
    with _without_noise(module):
        for args in calls:
            try:
                return functional_call(module, state, args)
            except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
                failure = failure or error  # the module may have another signature: try the next call
    raise ValueError(f"{name} ({type(module).__name__}) does not run on a batch of vectors: {failure}")


def _made_up(module: nn.Module, weights: dict[str, float | None]) -> dict[str, Tensor]:
    """Values for the parameters and buffers of a module: those in ``weights`` by name (None: random numbers).

    Of the others, scales are 1 and the rest is 0.
    """
    state = {}
    for key, tensor in (*module.named_parameters(), *module.named_buffers()):
        local = key.rpartition(".")[2]
        value = weights.get(local, float("scale" in local))
        shape = tuple(tensor.shape)
        # Not the seed of the inputs: a token that equals an expert's row of the router would saturate its gate.
        normals = _normals(*shape, seed=1)
        state[key] = normals / shape[-1] ** 0.5 if value is None else torch.full_like(normals, value)
        if not tensor.is_floating_point():
            state[key] = state[key].to(tensor.dtype)
    return state


@contextmanager
def _without_noise(module: nn.Module) -> Iterator[None]:
    """Runs a module as it is after training, on the CPU in full precision, with torch's random states left alone."""
    in_training = [each for each in module.modules() if each.training]
    try:
        for each in in_training:
            each.training = False
        with (
            torch.no_grad(),
            torch.device("cpu"),  # the caller's device and autocast do not apply here
            torch.autocast("cpu", enabled=False),
            torch.random.fork_rng(devices=[]),
        ):
            yield
    finally:
        for each in in_training:
            each.training = True


def _normals(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)
