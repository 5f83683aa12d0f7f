"""Stand-ins for the weights of a model: matrices without memory, by which its forward pass runs at any size.

A stand-in has the shape of a matrix and no numbers. A product with it is a fixed pattern of signs times the root mean
square (RMS) of what it multiplies, so that numbers pass through a model at the size that they have, and whatever
changes their size is in the forward pass itself. Gains and biases are neutral, and buffers hold what the model fills
them with: nothing depends on the weights that a model has, which may be on the meta device.
"""

from __future__ import annotations

import math
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mssp.hf.experts import FusedExperts, is_fused
from mssp.hf.vocabulary import for_all_blocks

_PERIOD = 32  # of the signs: a divisor of the sizes of most models, in which one pattern is orthogonal to another
_MOST_NUMBERS = 2**24  # of a parameter that is no factor of a product, and is made of real numbers
_SHAPES_ALONE = frozenset({
    "__getitem__", "t", "transpose", "permute", "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze",
    "expand", "swapaxes", "movedim", "chunk", "split", "unbind", "select", "narrow", "contiguous", "float", "to",
    "type", "type_as", "detach", "clone", "requires_grad_", "__get__", "size", "dim", "numel", "stride",
    "is_floating_point", "is_contiguous", "__len__", "element_size", "data_ptr", "is_complex", "ndimension",
})  # fmt: skip
# Copies that would need memory, of numbers that are all the same.
_UNCHANGED = frozenset({"contiguous", "clone", "float", "to", "type", "type_as"})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
          "_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks")  # fmt: skip


class NotRunnableError(ValueError):
    """A model whose forward pass does not run with stand-ins."""


def rms(x: Tensor) -> Tensor:
    """The root mean square over the last axis, which is kept."""
    return x.square().mean(-1, keepdim=True).sqrt()


@dataclass
class Stage:
    """What all stand-ins of a model share: ``log`` is told what each product multiplies, ``pattern`` changes signs.

    A stack of experts is one product, unless ``runs_experts``: then its own forward pass runs, with the gates.
    """

    log: Callable[[str, Tensor], None]
    pattern: int = 0
    runs_experts: bool = False

    def result(self, name: str, x: Tensor, size: int) -> Tensor:
        """A product of numbers with the stand-in of this name."""
        self.log(name, x)
        return rms(x) * self.signs(name, size)

    def signs(self, name: str, size: int) -> Tensor:
        return signs(f"{for_all_blocks(name)} {self.pattern}", size)


@cache
def signs(name: str, size: int) -> Tensor:
    """A pattern of as many ones as minus ones, which depends on the name.

    >>> signs("up_proj", 4).tolist()
    [1.0, -1.0, -1.0, 1.0]
    """
    mask = 1 + 2 * (zlib.crc32(name.encode()) % (_PERIOD // 2))  # odd: neighbours differ in sign
    period = [1.0 - 2.0 * ((place & mask).bit_count() % 2) for place in range(_PERIOD)]
    return torch.tensor(period, device="cpu", dtype=torch.float32).repeat(-(-size // _PERIOD))[:size]


@dataclass(frozen=True)
class _Source:
    """The parameter that a stand-in is of."""

    name: str
    stage: Stage
    real: Callable[[], Tensor] | None  # makes numbers for a use that is no product


class StandIn(Tensor):
    """A matrix, or a stack of them, without numbers."""

    source: _Source

    @classmethod
    def of(cls, source: _Source, shape: Sequence[int]) -> StandIn:
        nothing = torch.full((), math.nan, device="cpu", dtype=torch.float32).expand(tuple(shape))
        stand_in = nothing.as_subclass(cls)
        stand_in.source = source
        return stand_in

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", str(func))
        if (product := _PRODUCTS.get(name)) is not None:
            result = product(*args, **kwargs)
            if result is not None:
                return result
        elif name.endswith("_") and not name.startswith("_") and name != "requires_grad_":  # an initial draw
            return args[0] if args else kwargs["tensor"]
        elif name in _UNCHANGED and isinstance(args[0], StandIn):
            return args[0]
        elif name in _SHAPES_ALONE and isinstance(args[0], StandIn):
            return _passed_on(args[0], super().__torch_function__(func, types, args, kwargs))  # type: ignore[no-untyped-call]
        return func(*(_real(each, name) for each in args), **{key: _real(each, name) for key, each in kwargs.items()})


def _passed_on(source: StandIn, result: Any) -> Any:
    """The views of a stand-in are stand-ins under its name."""
    if isinstance(result, StandIn):
        result.source = replace(source.source, real=None)
        return result
    if isinstance(result, tuple | list) and any(isinstance(each, StandIn) for each in result):
        return type(result)([_passed_on(source, each) for each in result])
    return result


def _real(value: Any, function: str) -> Any:
    """Numbers in place of a stand-in, for a function that is no product."""
    if isinstance(value, tuple | list):
        return type(value)([_real(each, function) for each in value])
    if not isinstance(value, StandIn):
        return value
    source = value.source
    if source.real is None or value.numel() > _MOST_NUMBERS:
        raise NotRunnableError(f"{source.name} is used in {function}, which is no product with a matrix")
    return source.real()


def _product(x: Any, weight: Any, size: int, bias: Any = None) -> Tensor | None:
    """A product of numbers with a stand-in; None for anything else."""
    if not isinstance(weight, StandIn) or isinstance(x, StandIn) or isinstance(bias, StandIn):
        return None
    y = weight.source.stage.result(weight.source.name, x, size)
    return y if bias is None else y + bias


def _linear(input: Any, weight: Any, bias: Any = None) -> Tensor | None:
    return _product(input, weight, weight.shape[0], bias)


def _matmul(x: Any, weight: Any) -> Tensor | None:
    if not isinstance(weight, StandIn) or weight.dim() < 2 or isinstance(x, StandIn):
        return None
    if weight.dim() > 2:  # one matrix for each entry of the first axes
        x = x.expand(*torch.broadcast_shapes(x.shape[:-2], weight.shape[:-2]), *x.shape[-2:])
    return _product(x, weight, weight.shape[-1])


def _addmm(bias: Any, x: Any, weight: Any, **kwargs: Any) -> Tensor | None:
    return None if kwargs else _product(x, weight, weight.shape[-1], bias)


def _embedding(input: Tensor, weight: Any, *args: Any, **kwargs: Any) -> Tensor | None:
    """Vectors of size 1, which are the same for all tokens."""
    if not isinstance(weight, StandIn):
        return None
    return weight.source.stage.signs(weight.source.name, weight.shape[1]).expand(*input.shape, weight.shape[1])


_PRODUCTS: dict[str, Callable[..., Tensor | None]] = {
    "linear": _linear, "matmul": _matmul, "__matmul__": _matmul, "mm": _matmul, "bmm": _matmul, "addmm": _addmm,
    "baddbmm": _addmm, "embedding": _embedding,
}  # fmt: skip


@contextmanager
def stand_ins(model: nn.Module, stage: Stage) -> Iterator[None]:
    """Within this context a model has stand-ins for its weights, no hooks, and is in evaluation mode.

    Afterwards every module has its own attributes again, and the same parameters and buffers.
    """
    modules = dict(model.named_modules())
    attributes = {module: dict(vars(module)) for module in modules.values()}
    initializers = _initializers(model)
    standing: dict[Tensor, Tensor] = {}
    try:
        for path, module in modules.items():
            _put_in_place(module, path, stage, initializers.get(module), standing)
        with _Means():
            for module in modules.values():
                has_vectors = any(
                    not isinstance(each, StandIn) for each in module._parameters.values() if each is not None
                )
                if module in initializers and (has_vectors or module._buffers):
                    _initialized(module, initializers[module])
        yield
    finally:
        for module, own in attributes.items():
            module.__dict__.clear()
            module.__dict__.update(own)


class _Means(TorchFunctionMode):
    """What is drawn at random gets the mean of the distribution: numbers drawn for two sizes would differ."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name not in ("normal_", "trunc_normal_", "uniform_") or isinstance(args[0] if args else None, StandIn):
            result = func(*args, **kwargs)
            return result.fill_(_MEANS[name]) if name in _MEANS else result
        tensor, *numbers = (*args, *(kwargs[key] for key in _ARGUMENTS if key in kwargs))
        usual = (0.0, 1.0)
        first, second = (*numbers[:2], *usual[len(numbers) :])[:2]
        return tensor.fill_((first + second) / 2 if name == "uniform_" else first)


_MEANS = {"rand": 0.5, "rand_like": 0.5, "randn": 0.0, "randn_like": 0.0}
_ARGUMENTS = ("tensor", "mean", "std", "a", "b", "from", "to")


def _initialized(module: nn.Module, initializer: Callable[[nn.Module], None]) -> None:
    try:
        initializer(module)
    except Exception as error:  # whatever the code of a model raises
        reason = " ".join(str(error).splitlines()[:1]) or type(error).__name__
        raise NotRunnableError(f"{type(module).__name__} is not initialized with stand-ins: {reason}") from error


def _initializers(model: nn.Module) -> dict[nn.Module, Callable[[nn.Module], None]]:
    """The method that fills each module's parameters and buffers: that of the innermost model it is a part of."""
    return {
        module: part._init_weights  # type: ignore[misc]
        for part in model.modules()
        if callable(getattr(part, "_init_weights", None))
        for module in part.modules()
    }


def _put_in_place(
    module: nn.Module,
    path: str,
    stage: Stage,
    initializer: Callable[[nn.Module], None] | None,
    standing: dict[Tensor, Tensor],
) -> None:
    """Give a module stand-ins, in dictionaries of their own: its attributes alone need to be put back."""
    own = vars(module)
    count = FusedExperts.of(module, path).count if is_fused(module) else 0
    own.update({name: OrderedDict() for name in _HOOKS if name in own}, training=False)
    parameters, buffers = module._parameters, module._buffers
    own["_parameters"], own["_buffers"] = {}, {}
    for local, parameter in parameters.items():
        if parameter is not None and parameter not in standing:
            standing[parameter] = _standing_for(module, f"{path}.{local}", parameter, stage, initializer)
        module._parameters[local] = None if parameter is None else standing[parameter]  # type: ignore[assignment]
    for local, buffer in buffers.items():
        module._buffers[local] = None if buffer is None else _buffer(buffer)
    if is_fused(module):

        def experts(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if stage.runs_experts:
                output: Tensor = type(module).forward(module, hidden_states, *args, **kwargs)
                return output
            result = stage.result(path, hidden_states, hidden_states.shape[-1])
            if args or kwargs:
                return result
            # Every expert is called with all tokens times their gates, most of which are zero: the mean over others.
            chosen = hidden_states.any(-1).sum() * count / hidden_states[..., 0].numel()
            return result / chosen.clamp(min=1.0)

        own["forward"] = experts


def _standing_for(
    module: nn.Module, name: str, parameter: Tensor, stage: Stage, initializer: Callable[[nn.Module], None] | None
) -> Tensor:
    shape, local = tuple(parameter.shape), name.rpartition(".")[2]
    if isinstance(module, nn.modules.conv._ConvNd) and local == "weight" and shape[1] == 1:
        kernel = torch.zeros(shape, device="cpu", dtype=torch.float32)
        kernel[..., -1] = 1.0  # what comes in goes out, where a channel has a kernel of its own
        return kernel
    if sum(side > 1 for side in shape) < 2:
        return torch.full(shape, float(local == "weight"), device="cpu", dtype=torch.float32)

    def real() -> Tensor:
        numbers = torch.full(shape, math.nan, device="cpu", dtype=torch.float32)
        module._parameters[local] = numbers  # type: ignore[assignment]
        if initializer is not None:
            _initialized(module, initializer)
        if numbers.isnan().any():
            torch.nn.init.normal_(numbers, std=shape[-1] ** -0.5, generator=torch.Generator("cpu").manual_seed(0))
        return numbers

    return StandIn.of(_Source(name, stage, real), shape)


def _buffer(buffer: Tensor) -> Tensor:
    """The numbers of a buffer; on the meta device there are none, and the model has to fill it."""
    if not buffer.is_meta:
        return buffer.detach().to("cpu", copy=True)
    if buffer.is_floating_point():
        return torch.full(buffer.shape, math.nan, device="cpu", dtype=buffer.dtype)
    return torch.zeros(buffer.shape, device="cpu", dtype=buffer.dtype)
