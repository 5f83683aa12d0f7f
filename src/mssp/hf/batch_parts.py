"""Parts of a batch, over which gradients are added up: each part adds its share of a load-balancing loss.

The Trainer divides the loss of predictions by the number of predictions in the whole batch, over all parts and all
processes, and gives that number to the model. What the model adds for balance it takes as it comes: once for each part,
and once for each process. So while the model runs, the coefficients of such losses are multiplied by the share of the
batch's predictions that are in the part. Without a number of predictions in the whole batch they stay as they are.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn

from mssp.hf.balancing import COEFFICIENTS, put, read
from mssp.planning.recipe import PlanWarning

_WHOLE = "mssp_whole_coefficients"
_IGNORED = -100  # the label of what is not predicted


def share_among_parts(model: nn.Module, parts: int) -> None:
    """From here on, each of the parts of a batch adds its share. To call it again changes nothing."""
    add_in_full(model)
    coefficients = model.__dict__.get(COEFFICIENTS, ())
    if coefficients is None and parts > 1:
        message = (
            f"each of {parts} parts of a batch adds the model's load-balancing loss in full, and its coefficient is "
            f"not known: divide it by {parts}"
        )
        warnings.warn(message, PlanWarning, stacklevel=3)
    if coefficients:
        model.register_forward_pre_hook(_scaled, with_kwargs=True)
        model.register_forward_hook(_restored, always_call=True)


def add_in_full(model: nn.Module) -> None:
    """Undo :func:`share_among_parts`."""
    for hooks in (model._forward_pre_hooks, model._forward_hooks):
        for key, hook in list(hooks.items()):
            if hook in (_scaled, _restored):
                del hooks[key]
    for keys in (model._forward_pre_hooks_with_kwargs, model._forward_hooks_always_called):
        for key in set(keys) - {*model._forward_pre_hooks, *model._forward_hooks}:
            del keys[key]


def _scaled(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    in_batch, labels = kwargs.get("num_items_in_batch"), kwargs.get("shift_labels")
    if labels is None and kwargs.get("labels") is not None:
        labels = kwargs["labels"][..., 1:]
    if in_batch is None or labels is None:
        return
    if isinstance(in_batch, Tensor):
        in_batch = in_batch.flatten()[0].to(labels.device)  # one for each GPU of this process, and all equal
    share = labels.ne(_IGNORED).sum() / in_batch
    whole = {each.name: read(model, each.name) for each in model.__dict__.get(COEFFICIENTS, ())}
    model.__dict__.setdefault(_WHOLE, whole)
    for name, value in model.__dict__[_WHOLE].items():
        put(model, name, value * share)


def _restored(model: nn.Module, args: Any, output: Any) -> None:
    for name, value in model.__dict__.pop(_WHOLE, {}).items():
        put(model, name, value)
