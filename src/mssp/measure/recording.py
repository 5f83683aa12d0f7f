"""Records what enters and leaves the modules of a model in one forward pass, and leaves the model as it was.

Shapes: T tokens (rows of all calls of a module, one call after the other), a outputs, b inputs; a leading axis of one
replica, as everywhere in this package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from mssp.nn.router import Routing, without_autocast


class Passage:
    """What went through a module in one forward pass.

    Values are copies, in float32 or wider, since models write into their tensors in place. For the same reason
    gradients are asked for at the edges of autograd's graph, which stay those of the values that were copied.

    ``calls`` are the arguments and the output of every call, as they were, if the module is recorded with its calls.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], Any]] = []
        self._input_edges: list[GradientEdge] = []
        self._output_edges: list[GradientEdge] = []
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._shapes: list[tuple[torch.Size, torch.dtype]] = []

    def add(self, x: Tensor, output: Any) -> None:
        """One more call."""
        y = main_output(output)
        self._shapes.append((x.shape, x.dtype))
        self._inputs.append(_rows(wide_copy(x)))
        self._outputs.append(_rows(wide_copy(y)))
        for edges, tensor in ((self._input_edges, x), (self._output_edges, y)):
            if tensor.requires_grad:
                edges.append(get_gradient_edge(tensor))

    @property
    def x(self) -> Tensor:
        """What entered, [1, T, b]; of a lookup, the numbers that were looked up, [1, T, 1]."""
        return torch.cat(self._inputs).unsqueeze(0)

    @property
    def y(self) -> Tensor:
        """What left, [1, T, a]; of a router, its logits."""
        return torch.cat(self._outputs).unsqueeze(0)

    @property
    def tokens(self) -> int:
        return sum(len(rows) for rows in self._inputs)

    @property
    def input_edges(self) -> list[GradientEdge]:
        """The edges at which to ask for the gradient of each call's input; none where one of them has no gradient."""
        return self._input_edges if len(self._input_edges) == len(self._inputs) else []

    @property
    def output_edges(self) -> list[GradientEdge]:
        """As ``input_edges``, for the outputs."""
        return self._output_edges if len(self._output_edges) == len(self._outputs) else []

    def by_call(self, x: Tensor) -> list[Tensor]:
        """Rows [1, T, b] as the inputs of each call were: in their shapes and dtypes."""
        parts = x.squeeze(0).split([len(rows) for rows in self._inputs])
        return [part.view(shape).to(dtype) for part, (shape, dtype) in zip(parts, self._shapes, strict=True)]

    def gradient_rows(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """The gradients at each call's output as rows, [1, T, a]; None stands for an output that nothing depends on."""
        rows = [
            torch.zeros_like(y) if gradient is None else _rows(wide_copy(gradient))
            for y, gradient in zip(self._outputs, gradients, strict=True)
        ]
        return torch.cat(rows).unsqueeze(0)


def main_output(output: Any) -> Tensor:
    """What a module returned, or the first of what it returned; of a router, its logits."""
    y = output.logits if isinstance(output, Routing) else output[0] if isinstance(output, tuple) else output
    assert isinstance(y, Tensor)
    return y


def with_first(output: Any, first: Tensor) -> Any:
    """What a module returned, with another tensor in the first place."""
    if isinstance(output, Tensor):
        return first
    parts = (first, *output[1:])
    return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)


def wide_copy(x: Tensor) -> Tensor:
    """A copy without gradients, in float32 or wider where it holds numbers."""
    return x.detach().to(torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else x.dtype, copy=True)


@contextlib.contextmanager
def recorded(
    modules: Iterable[nn.Module], with_calls: Collection[nn.Module] = ()
) -> Iterator[Mapping[nn.Module, Passage]]:
    """Record what goes through these modules; those that no token reaches are left out.

    Of modules in ``with_calls``, arguments and outputs are kept as they are, with their graph.
    """
    passed: dict[nn.Module, Passage] = {}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        arguments = (*args, *kwargs.values())
        if arguments[0].numel():
            passage = passed.setdefault(module, Passage())
            passage.add(arguments[0], output)
            if module in with_calls:
                passage.calls.append((arguments, output))

    handles = [module.register_forward_hook(record, with_kwargs=True) for module in modules]
    try:
        yield passed
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run a model without noise and dropout, in its own precision, uncompiled, and restore its state afterwards.

    The state is training flags, buffers (some models count in them) and random states. A compiled model would run past
    the hooks, and autocast around one call but not around the next would be measured as a change.
    """
    flags = [(module, module.training) for module in model.modules()]
    held = [(module, dict(module._buffers)) for module in model.modules() if module._buffers]
    buffers = [buffer for _, named in held for buffer in named.values() if buffer is not None]
    copies = [(buffer, buffer._version, buffer.clone()) for buffer in buffers]
    devices = {parameter.device for parameter in model.parameters()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device for device in devices if device.type == "cuda"]))
        for kind in {device.type for device in devices}:
            stack.enter_context(without_autocast(kind))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            for module in model.modules():
                module.training = False  # not eval(), which some models use to merge weights
            yield
        finally:
            for module, training in flags:
                module.training = training
            for module, named in held:
                module._buffers.update(named)
            with torch.no_grad():
                for buffer, version, copy in copies:
                    if buffer._version != version:  # an unneeded write would invalidate a graph that saved the buffer
                        buffer.copy_(copy)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1] if x.is_floating_point() else 1)
