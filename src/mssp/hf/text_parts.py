"""The text model inside a multimodal one: where it is, what stands beside it, and what its config is.

A plan has rules for text models. In a larger model, the text model is described together with the readout, which the
larger one holds, and the other parts (vision, audio, what connects them) must be frozen.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

from torch import nn

from mssp.planning.recipe import PlanWarning

_TEXT = "text_config"
_MOST_NAMED = 4  # parts that a message names


def text_config_of(config: Any) -> Any:
    """The config of the text model in a larger one's; any other config is its own."""
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def path_of_text_model(model: nn.Module) -> str:
    """The path of the text model inside a larger model; empty for a text model, which is its own."""
    wanted = text_config_of(model.config)
    if wanted is model.config:
        return ""
    path: str
    for path, module in model.named_modules():
        if hasattr(module, "get_input_embeddings") and type(module.config) is type(wanted):
            return path
    raise ValueError(f"{type(model).__name__} holds no text model with a {type(wanted).__name__}")


def is_described(model: nn.Module, name: str, path: str) -> bool:
    """Whether a parameter is of the text model, or of the readout that a larger model holds for it."""
    if not path or name.startswith(f"{path}."):
        return True
    readout = model.get_output_embeddings()  # type: ignore[operator]
    return readout is not None and any(each is model.get_parameter(name) for each in readout.parameters())


def freeze_other_parts(model: nn.Module) -> None:
    """Freeze what is not of the text model, and is not its readout."""
    path = path_of_text_model(model)
    for name, parameter in model.named_parameters():
        if not is_described(model, name, path):
            parameter.requires_grad_(False)


def refuse_other_parts(model: nn.Module) -> None:
    """Refuse a larger model of which other parts than text are trained, and warn of a text model without a readout."""
    path, title = path_of_text_model(model), type(model).__name__
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    others = dict.fromkeys(_part(name, path) for name in trained if not is_described(model, name, path))
    if others:
        named = ", ".join([*others][:_MOST_NAMED]) + (" and others" if len(others) > _MOST_NAMED else "")
        raise ValueError(
            f"{title} trains parts beside its text model, for which there is no rule: freeze {named} "
            f"(requires_grad_(False)), or adapt its text model alone, model.{path}"
        )
    if model.get_output_embeddings() is not None:  # type: ignore[operator]
        return
    if getattr(model.config, "tie_word_embeddings", False):
        raise ValueError(
            f"{title} has no readout, and its config says that this is the embedding used again: adapt the larger "
            "model that holds it, with its other parts frozen"
        )
    warnings.warn(
        f"{title} has no readout, and the plan for it goes nowhere: adapt the larger model that holds it, with its "
        "other parts frozen, or give that matrix the numbers of the role readout yourself",
        PlanWarning,
        stacklevel=4,
    )


def _part(name: str, path: str) -> str:
    """The part of a larger model that a parameter is of: the longest path that it shares with the text model, plus one.

    >>> _part("model.visual.blocks.0.norm.weight", "model.language_model")
    'model.visual'
    """
    words, shared = name.split("."), 0
    for own, text in zip(words, path.split("."), strict=False):
        if own != text:
            break
        shared += 1
    return ".".join(words[: shared + 1])


def fitted_to(config: Any, like: nn.Module) -> Any:
    """A config as one for models of this class: the text model's out of a larger one's, or put into a larger one."""
    if type(config) is type(like.config):
        return config
    text = text_config_of(config)
    if type(text) is type(like.config):
        return text
    if type(text) is type(text_config_of(like.config)) and hasattr(like.config, _TEXT):
        larger = copy.deepcopy(like.config)
        setattr(larger, _TEXT, text)
        return larger
    return config
