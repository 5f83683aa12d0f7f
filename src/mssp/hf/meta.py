"""Configs of Hugging Face models: read from files or mappings, and built on the meta device, without memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mssp.planning.configs import FAMILY, NOT_SIZES, entries_of, family_of, read_config

STORED = "mssp"  # the entry of a model's config that travels with its checkpoints
Made = TypeVar("Made")
_LONGEST = 200  # characters of an error that is quoted


def config_of(source: Any, like: nn.Module | None = None) -> Any:
    """A config object, made of a mapping, a folder, or the path of a ``config.json``; an object is returned as it is.

    Its class is that of the model ``like``, or the one that ``transformers`` has for its family.
    """
    if hasattr(source, "to_dict") and hasattr(source, FAMILY):
        return source
    if isinstance(source, str | Path):
        source = read_config(source)
    if not isinstance(source, Mapping):
        raise ValueError(f"a base is a config, a mapping, a folder or a config.json, got a {type(source).__name__}")
    entries = entries_of(source)
    sizes = {key: value for key, value in entries.items() if key not in (*NOT_SIZES, STORED)}
    if like is not None:
        return _made(type(like.config), sizes)
    from transformers import CONFIG_MAPPING

    family = family_of(entries)
    if not isinstance(family, str) or family not in CONFIG_MAPPING:
        raise ValueError(f"the config's model_type {family!r} is not one that transformers knows")
    return _made(CONFIG_MAPPING[family], sizes)


def on_meta(config: Any, like: nn.Module | None = None) -> nn.Module:
    """A model with this config that has shapes and no numbers; its class is that of ``like``, if given."""
    from transformers import AutoModelForCausalLM

    build: Callable[..., nn.Module] = AutoModelForCausalLM.from_config if like is None else type(like)
    with torch.device("meta"), _WithoutDraws():
        return _made(build, config)


class _WithoutDraws(TorchFunctionMode):
    """Layers do not draw their initial weights, in this thread: tensors without numbers could not hold them."""

    _DRAWS = frozenset({nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_})

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self._DRAWS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def _made(make: Callable[..., Made], config: Any) -> Made:
    """What a class of transformers makes of a config. Its errors become one line."""
    try:
        return make(**config) if isinstance(config, Mapping) else make(config)
    except Exception as error:  # of any kind: each family has checks, and mistakes, of its own
        reason = " ".join(str(error).splitlines()[-1:]).strip() or type(error).__name__
        reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]} …"
        raise ValueError(f"transformers cannot make a model of this config: {reason}") from None
