"""Finds, by its code, every family of MoE causal language models in the installed transformers.

A family is found by the class of its text model's config: the config speaks of experts, and there is a model with a
language model's head for it, or a text model inside a multimodal one. Configs of larger models, which hold the config
of a text model, lead to the text model's family.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

from mssp.hf.meta import class_of

_MODELS = Path(transformers.__file__).parent / "models"


@dataclass(frozen=True)
class Found:
    """A family in transformers: the class of its model, and the larger models whose configs hold one of this family."""

    family: str
    class_name: str
    through: tuple[str, ...]


@cache
def found() -> Mapping[str, Found]:
    """Every family, by the name in its text model's config."""
    classes: dict[str, str] = {}
    through: dict[str, list[str]] = {}
    for model_type in _candidates():
        text = _default(model_type).get_text_config()
        if text.is_encoder_decoder or not speaks_of_experts(text.to_dict()):
            continue
        model_class = class_of(text)
        if model_class is None:
            continue
        classes[text.model_type] = model_class.__name__
        through.setdefault(text.model_type, [])
        if text.model_type != model_type:
            through[text.model_type].append(model_type)
    return {family: Found(family, name, tuple(sorted(through[family]))) for family, name in sorted(classes.items())}


def speaks_of_experts(entries: Mapping[str, Any]) -> bool:
    """Whether a config, or a part of it, has an entry for experts."""
    inner = (value for value in entries.values() if isinstance(value, Mapping))
    return any("expert" in str(key) for key in entries) or any(map(speaks_of_experts, inner))


def _candidates() -> Iterator[str]:
    """Model types whose code has experts, then those whose configs are made of such a type's: importing all is slow."""
    files = {model_type: _sources(model_type) for model_type in CONFIG_MAPPING_NAMES}
    with_experts = [name for name, (config, model) in files.items() if "expert" in config or "expert" in model]
    yield from with_experts
    named = re.compile("|".join(rf'"{re.escape(name)}"' for name in with_experts))
    yield from (name for name, (config, _) in files.items() if name not in with_experts and named.search(config))


def _sources(model_type: str) -> tuple[str, str]:
    """The text of the files in which a model type's config and model are."""
    module = model_type_to_module_name(model_type)
    paths = (_MODELS / module / f"{kind}_{module}.py" for kind in ("configuration", "modeling"))
    config, model = (path.read_text(encoding="utf-8") if path.exists() else "" for path in paths)
    return config, model


def _default(model_type: str) -> Any:
    """The config with a family's own defaults; where they contradict each other, that of its text model."""
    config_class = CONFIG_MAPPING[model_type]
    try:
        return config_class()
    except Exception:  # each family has checks of its own, which raise errors of many kinds
        part = config_class.sub_configs_defaults["text_config"]
        return CONFIG_MAPPING[part.model_type]()
