"""Watches where the parameters of a model meet its activations, wherever the code of the model does that.

A hook sees what enters and leaves a module. Here every operation of torch is seen: ``einsum`` with a stack of experts,
``x @ self.matrix``, ``F.linear`` inside a module. A parameter is known by its storage, which its views share; copies of
it alone (casts, stacks, selected experts) stand for it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

# From the names of parameters, the activations that they meet and the output to the output that the model goes on with.
Meeting = Callable[[tuple[str, ...], list[Tensor], Tensor], Tensor]


class WatchedProducts(TorchFunctionMode):
    """While it is entered, calls ``meeting`` for every operation on watched parameters and activations.

    >>> import torch
    >>> matrix, x = torch.ones(2, 3), torch.ones(1, 3)
    >>> with WatchedProducts({"matrix": matrix}, lambda names, inputs, output: output * 10):
    ...     torch.einsum("oi,ti->to", matrix, x), x @ matrix.T + 1
    (tensor([[30., 30.]]), tensor([[31., 31.]]))
    """

    def __init__(self, parameters: Mapping[str, Tensor], meeting: Meeting) -> None:
        super().__init__()
        self._names: dict[int, tuple[str, ...]] = {
            _storage(parameter): (name,) for name, parameter in parameters.items()
        }
        self._meeting = meeting
        # The memory of a copy that was freed would go to an activation, which would be taken for the parameter.
        self._copies: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        output = returned[0] if isinstance(returned, tuple) and returned else returned
        if not isinstance(output, Tensor) or not output.is_floating_point() or _storage(output) in self._names:
            return returned
        names: dict[str, None] = {}
        activations: list[Tensor] = []
        for tensor in _tensors((args, kwargs)):
            of_tensor = self._names.get(_storage(tensor))
            if of_tensor is not None:
                names.update(dict.fromkeys(of_tensor))
            elif tensor.is_floating_point():
                activations.append(tensor)
        if not names:
            return returned
        if not activations:
            self._names[_storage(output)] = tuple(names)
            self._copies.append(output)
            return returned
        changed = self._meeting(tuple(names), activations, output)
        return (changed, *returned[1:]) if isinstance(returned, tuple) else changed


def _tensors(nested: Any) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, tuple | list):
        for part in nested:
            yield from _tensors(part)
    elif isinstance(nested, Mapping):
        yield from _tensors(tuple(nested.values()))


def _storage(tensor: Tensor) -> int:
    """The address of a tensor's memory; 0 for tensors without memory of their own, such as those of ``torch.func``."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
