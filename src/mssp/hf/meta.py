"""Configs of Hugging Face models: read from what people have, and built on the meta device, without memory."""

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
_LONGEST = 200  # of what is quoted


def config_of(given: Any, like: nn.Module | None = None) -> Any:
    """A config object from what people have: itself, a mapping, a folder, or the path of a ``config.json``."""
    if hasattr(given, "to_dict") and hasattr(given, FAMILY):
        return given
    if isinstance(given, str | Path):
        given = read_config(given)
    if isinstance(given, Mapping):
        given = entries_of(given)
    else:
        raise ValueError(f"a base is a config, a mapping, a folder or a config.json, got a {type(given).__name__}")
    known = {key: value for key, value in given.items() if key not in (*NOT_SIZES, STORED)}
    if like is not None:
        return _made(type(like.config), known)
    from transformers import CONFIG_MAPPING

    kind = family_of(given)
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ValueError(f"the config's model_type {kind!r} is not one that transformers knows")
    return _made(CONFIG_MAPPING[kind], known)


def on_meta(config: Any, like: nn.Module | None = None) -> nn.Module:
    """A model with this config that has shapes and no numbers."""
    from transformers import AutoModelForCausalLM

    def build(given: Any) -> nn.Module:
        with torch.device("meta"), _WithoutDraws():
            model: nn.Module = AutoModelForCausalLM.from_config(given) if like is None else type(like)(given)
        return model

    return _made(build, config)


class _WithoutDraws(TorchFunctionMode):
    """Initial weights of layers are not drawn, in this thread: tensors without numbers would not hold them."""

    _DRAWS = frozenset({nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_})

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self._DRAWS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def _made(make: Callable[..., Made], given: Any) -> Made:
    """What a class of transformers makes of a config; whatever it has against it, in one line."""
    try:
        return make(**given) if isinstance(given, Mapping) else make(given)
    except Exception as error:  # of any kind: each family has checks, and mistakes, of its own
        told = " ".join(str(error).splitlines()[-1:]).strip() or type(error).__name__
        told = told if len(told) <= _LONGEST else f"{told[:_LONGEST]} …"
        raise ValueError(f"transformers cannot make a model of this config: {told}") from None
