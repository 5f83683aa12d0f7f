"""Config objects from files or mappings, and models built from them on the meta device, without memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mssp.planning.configs import FAMILY, NOT_SIZES, entries_of, family_of, loaded

STORED = "mssp"  # the entry of a model's config that holds plan and base, and is saved with checkpoints
Built = TypeVar("Built")
_LONGEST_QUOTE = 200  # characters of another library's error in ours


def config_of(source: Any, like: nn.Module | None = None) -> Any:
    """A config object, from a mapping, a folder, or the path of a ``config.json``. An object is returned as it is.

    Its class is that of the config of the model ``like``, or the one that ``transformers`` has for the family.
    """
    if hasattr(source, "to_dict") and hasattr(source, FAMILY):
        return source
    source = loaded(source)
    if not isinstance(source, Mapping):
        raise ValueError(f"a base is a config, a mapping, a folder or a config.json, got a {type(source).__name__}")
    entries = entries_of(source)
    sizes = {key: value for key, value in entries.items() if key not in (*NOT_SIZES, STORED)}
    if like is not None:
        return _built(type(like.config), sizes)
    from transformers import CONFIG_MAPPING

    family = family_of(entries)
    if not isinstance(family, str) or family not in CONFIG_MAPPING:
        raise ValueError(f"the config's model_type {family!r} is not one that transformers knows")
    return _built(CONFIG_MAPPING[family], sizes)


def on_meta(config: Any, like: nn.Module | None = None) -> nn.Module:
    """A model with this config whose parameters have shapes and no numbers; its class is that of ``like``, if given."""
    from transformers import AutoModelForCausalLM

    build: Callable[..., nn.Module] = AutoModelForCausalLM.from_config if like is None else type(like)
    with torch.device("meta"), _WithoutDraws():
        return _built(build, config)


class _WithoutDraws(TorchFunctionMode):
    """In this thread, layers do not draw initial weights, for which tensors on the meta device have no room."""

    _DRAWS = frozenset({nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_})

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self._DRAWS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def _built(build: Callable[..., Built], config: Any) -> Built:
    """An object of a class of transformers, built from a config. Errors of the class are quoted in one line."""
    try:
        return build(**config) if isinstance(config, Mapping) else build(config)
    except Exception as error:  # each family has checks of its own, and mistakes, which raise any kind of error
        reason = " ".join(str(error).splitlines()[-1:]).strip() or type(error).__name__
        reason = reason if len(reason) <= _LONGEST_QUOTE else f"{reason[:_LONGEST_QUOTE]} …"
        raise ValueError(f"transformers cannot make a model of this config: {reason}") from None
