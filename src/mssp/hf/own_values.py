"""Numbers that a model's own library computes: its buffers, and the parameters that no plan gives values to.

A model that is built on the meta device has none of them. ``to_empty`` gives it memory that holds anything, and what is
not trained stays that way: frequencies of rotary embeddings, biases of routers, decay rates of linear attention.

A buffer that is in no checkpoint is computed by the model itself, always in the same way. So it shows whether a model
was materialised empty: it is computed again and compared. The numbers of such a model are taken from another one that
is built from the same config, whose trainable parameters stay on the meta device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from mssp.apply.description import name_cleaner
from mssp.hf.meta import built_without_draws

_OWN_INIT, _INIT_OF_ALL = "_init_weights", "initialize_weights"  # methods of the models of transformers
_TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1e-2}  # relative; devices round differently
_USUAL_TOLERANCE = 1e-4


def changed_buffers(model: nn.Module) -> list[str] | None:
    """The names of buffers that do not hold what the model itself computes; None where there is no buffer to tell by.

    Some models compute such a buffer anew while they run, for longer texts, and keep its first values in another one:
    of these both would have to differ.
    """
    clean = name_cleaner(model)
    changed, seen = [], False
    for path, module, init in _with_init(model):
        of_no_checkpoint = module._non_persistent_buffers_set
        held = {name: each for name, each in module._buffers.items() if each is not None and name in of_no_checkpoint}
        if not held or any(True for _ in module.children()):
            continue
        computed = _computed(module, init)
        pairs = {name: (tensor, computed[name]) for name, tensor in held.items() if name in computed}
        seen |= bool(pairs)
        if pairs and not any(_agree(*pair) for pair in pairs.values()):
            changed += [clean(f"{path}.{name}" if path else name) for name in pairs]
    return changed if seen else None


def values_of_own(model: nn.Module, kept: Collection[str], seed: int) -> list[tuple[Tensor, Tensor]]:
    """All buffers of a model and the parameters in ``kept``, each with what the model's own library gives it.

    Random numbers follow from the seed. Raises a ValueError that names what the library does not fill.
    """
    clean = name_cleaner(model)
    built = built_with_own_values(model, kept, seed)
    held = [(clean(name), buffer) for name, buffer in model.named_buffers(remove_duplicate=False)]
    held += [(clean(name), parameter) for name, parameter in model.named_parameters() if clean(name) in kept]
    unfilled = [name for name, tensor in held if not _fits(built.get(name), tensor)]
    if unfilled:
        others = f" and {len(unfilled) - 1} more" if len(unfilled) > 1 else ""
        raise ValueError(
            f"{unfilled[0]}{others} has memory and no values, as to_empty leaves it, and the model's own init does not "
            "fill it: fill all buffers and parameters that are not trained, and adapt the model after that"
        )
    return [(tensor, built[name]) for name, tensor in held]


def _with_init(model: nn.Module) -> Iterator[tuple[str, nn.Module, Callable[[nn.Module], None]]]:
    """Every module with the function that fills it, which is that of the innermost model around it."""
    inits: dict[str, Callable[[nn.Module], None] | None] = {}
    for path, module in model.named_modules():
        init = getattr(module, _OWN_INIT, None) or inits.get(path.rpartition(".")[0])
        inits[path] = init
        if init is not None:
            yield path, module, init


def _computed(module: nn.Module, init: Callable[[nn.Module], None]) -> dict[str, Tensor]:
    """The buffers that a model's own init computes, of a module without modules inside, which stays as it is."""
    clone = copy.copy(module)  # its own dictionary of attributes, without copies of what they hold
    parameters = {name: None if held is None else _meta(held) for name, held in module._parameters.items()}
    buffers = {name: None if held is None else _unset(held) for name, held in module._buffers.items()}
    vars(clone).update(_parameters=parameters, _buffers=buffers)
    versions = {name: None if buffer is None else buffer._version for name, buffer in buffers.items()}
    with torch.no_grad(), torch.device("cpu"), torch.random.fork_rng(devices=[]):
        init(clone)
    return {
        name: buffer
        for name, buffer in clone._buffers.items()
        if buffer is not None and buffer._version != versions.get(name) and not _has_nan(buffer)
    }


def built_with_own_values(model: nn.Module, kept: Collection[str], seed: int) -> dict[str, Tensor]:
    """The buffers and the kept parameters of a new model with the same config, without memory for all others."""

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        return None if parameter is None or parameter.is_meta else _meta(parameter)

    hook = register_module_parameter_registration_hook(without_memory)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            built = built_without_draws(model.config, like=model, device="cpu")
    finally:
        hook.remove()
    init_all = getattr(built, _INIT_OF_ALL, None)
    owners = [(path, module, name) for path, module in built.named_modules() for name in module._parameters]
    for path, module, name in owners:
        parameter = module._parameters[name]
        if parameter is not None and f"{path}.{name}".lstrip(".") in kept:
            module._parameters[name] = nn.Parameter(_unset(parameter), requires_grad=False)
    for module in built.modules():  # marks that it was filled when it was built
        vars(module).pop("_is_hf_initialized", None)
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if init_all is not None:
            init_all()
    values: dict[str, Any] = dict(built.named_buffers(remove_duplicate=False))
    return values | {name: parameter.detach() for name, parameter in built.named_parameters() if name in kept}


def _meta(parameter: Tensor) -> nn.Parameter:
    empty = torch.empty(tuple(parameter.shape), dtype=parameter.dtype, device="meta")
    return nn.Parameter(empty, requires_grad=parameter.requires_grad)


def _unset(tensor: Tensor) -> Tensor:
    """A tensor of this shape on the CPU that shows which numbers nobody has set, where it can hold NaN."""
    value = torch.nan if tensor.is_floating_point() else 0
    return torch.full(tuple(tensor.shape), value, dtype=tensor.dtype, device="cpu")


def _has_nan(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.isnan().any())


def _fits(value: Tensor | None, tensor: Tensor) -> bool:
    return value is not None and not value.is_meta and value.shape == tensor.shape and not _has_nan(value)


def _agree(held: Tensor, computed: Tensor) -> bool:
    if held.is_meta or held.shape != computed.shape:  # of another length: it has been computed anew since
        return not held.is_meta
    tolerance = _TOLERANCE.get(held.dtype, _USUAL_TOLERANCE)
    ours, theirs = (tensor.detach().to("cpu", torch.float64) for tensor in (held, computed.to(held.dtype)))
    return torch.allclose(ours, theirs, rtol=tolerance, atol=0.0)
