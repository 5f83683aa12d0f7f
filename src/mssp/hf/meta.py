"""Config objects from files or mappings, and models built from them on the meta device, without memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.overrides import TorchFunctionMode

from mssp._constraints import shown
from mssp.hf.text_parts import fitted_to, freeze_other_parts, text_config_of
from mssp.planning.configs import (
    FAMILY,
    NOT_SIZES,
    REPLACED,
    STORED,
    entries_of,
    family_of,
    loaded,
    replaced_numbers,
    with_own_numbers,
)

Built = TypeVar("Built")


class ConfigError(ValueError):
    """A config of which no model can be made; the message does not say where it came from."""


_LAYERS = "num_hidden_layers"
MOST_LAYERS = 500  # describing so many takes some seven seconds
MOST_MODULES = 100_000  # where experts are modules of their own, a model of 60 layers with 256 experts has 60,000
_LARGEST_SIZE = 2**40
_MOST_ODD = 3  # entries that a message names
_TALKS = "thinker_config"  # in the config of a model that also speaks: that of the part which writes
# How the names of classes end: models with a language model's head, text models without, and larger ones with both.
_HEAD, _NO_HEAD, _LARGER = "ForCausalLM", "TextModel", "ForConditionalGeneration"
_LONGEST_QUOTE = 200  # characters of another library's error in ours


def config_of(source: Any, like: nn.Module | None = None) -> Any:
    """A config object, from an object, a mapping, a folder, or the path of a ``config.json``.

    Its class is that of the config of the model ``like``, or the one that ``transformers`` has for the family. Of the
    config of a multimodal model it is the part for text, if there is a class of language models for that. Numbers in
    which a checkpoint holds factors of its plan are what they were before.
    """
    if hasattr(source, "to_dict") and hasattr(source, FAMILY):
        source = _with_own_numbers(source)
        return _of_text(source) if like is None else fitted_to(source, like)
    source = loaded(source)
    if not isinstance(source, Mapping):
        raise ValueError(f"a model's config must be an object, a mapping or the path of one, got {shown(source)}")
    entries = entries_of(source)
    _check_entries(entries)
    _refuse_functions(source)
    if like is not None:
        return fitted_to(_built(type(text_config_of(like.config)), _sizes_in(entries)), like)
    from transformers import CONFIG_MAPPING

    family = source.get(FAMILY, family_of(entries))
    if not isinstance(family, str) or family not in CONFIG_MAPPING:
        raise ConfigError(f"the config's model_type {family!r} is not one that transformers knows")
    return _of_text(_built(CONFIG_MAPPING[family], _sizes_in(with_own_numbers(source))))


def _refuse_functions(entries: Mapping[str, Any]) -> None:
    """Refuse entries that would take the place of a function of a config, in its parts too."""
    from transformers import PreTrainedConfig

    for key, value in entries.items():
        if callable(getattr(PreTrainedConfig, str(key), None)):
            raise ConfigError(f"{key} is a function of transformers' configs, and cannot be an entry of one")
        if isinstance(value, Mapping):
            _refuse_functions(value)


def _sizes_in(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key not in (*NOT_SIZES, STORED)}


def _with_own_numbers(config: Any) -> Any:
    if not replaced_numbers(getattr(config, STORED, None)):
        return config
    config = copy.deepcopy(config)
    for part, name, own, planned in numbers_with_factors(config):
        if getattr(part, name, None) == planned:  # nobody has set it since
            setattr(part, name, own)
    del getattr(config, STORED)[REPLACED]
    return config


def numbers_with_factors(config: Any) -> Iterator[tuple[Any, str, float, float]]:
    """The numbers in which a checkpoint's config holds factors of its plan.

    Each is given by the part of the config that has it, the name, what it was, and what the plan has made of it.
    """
    for path, (own, planned) in replaced_numbers(getattr(config, STORED, None)).items():
        *parts, name = path.split(".")
        part = reduce(lambda part, each: getattr(part, each, None), parts, config)
        if part is not None:
            yield part, name, own, planned


def _of_text(config: Any) -> Any:
    """The part for text of a larger model's config, if there is a class of models with a head for it."""
    config = getattr(config, _TALKS, config)
    text = text_config_of(config)
    model_class = None if text is config else class_of(text)
    return config if model_class is None or not model_class.__name__.endswith(_HEAD) else text


def class_of(config: Any) -> type[nn.Module] | None:
    """The class of the language model of a text model's config, None if transformers has none.

    It is the one that ``AutoModelForCausalLM`` takes. A family that is not listed there has a class of its own beside
    the config's, or a text model without a head, which is a part of a larger model. That of a larger model's config
    is the class of the larger model.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    kind = type(config)
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        listed: type[nn.Module] = MODEL_FOR_CAUSAL_LM_MAPPING[kind]
        return listed
    beside = {name: each for name, each in _names_beside(kind).items() if isinstance(each, type)}
    own = {name: each for name, each in beside.items() if getattr(each, "config_class", None) is kind}
    with_heads, without = (
        [each for name, each in own.items() if name.endswith(ends)] for ends in ((_HEAD, _LARGER), _NO_HEAD)
    )
    if any(name.endswith((_HEAD, _LARGER)) for name in beside):
        without += [MODEL_MAPPING[kind]] if kind in MODEL_MAPPING else []
        return next(iter((*with_heads, *without)), None)
    return None


def _names_beside(config_class: type) -> Mapping[str, Any]:
    """What the module holds in which transformers has the models of a class of configs."""
    try:
        return vars(import_module(config_class.__module__.replace(".configuration_", ".modeling_")))
    except ModuleNotFoundError:
        return {}


def on_meta(config: Any, like: nn.Module | None = None) -> nn.Module:
    """A model with this config whose parameters have shapes and no numbers; its class is that of ``like``, if given.

    Without one, the parts of a multimodal model that are not for text are frozen.
    """
    return built_without_draws(config, like, "meta")


def built_without_draws(config: Any, like: nn.Module | None, device: str) -> nn.Module:
    """A model with this config on a device, without the initial weights that layers of torch draw."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    build: Callable[..., nn.Module] = AutoModelForCausalLM.from_config if like is None else type(like)
    if like is None and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        build = class_of(config) or build
    with torch.device(device), _WithoutDraws(), _counting_modules():
        model = _built(build, config)
    if like is None:
        freeze_other_parts(model)
    return model


def _check_entries(entries: Mapping[str, Any]) -> None:
    """Refuse entries that transformers takes, and then fails by, or never ends with."""
    layers = entries.get(_LAYERS)
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise ConfigError(
            f"{_LAYERS} must be at most {MOST_LAYERS:,} for a plan by parameter name, got {shown(layers)}"
        )
    for key in ("dtype", "torch_dtype"):
        dtype = entries.get(key)
        named = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
        if dtype is not None and not isinstance(named, torch.dtype):
            raise ConfigError(f"{key} must be a type of torch's, as bfloat16, got {shown(dtype)}")


@contextmanager
def _counting_modules() -> Iterator[None]:
    """Stops the construction of models of so many modules that describing them would take minutes."""
    registered = 0

    def count(*_: Any) -> None:
        nonlocal registered
        registered += 1
        if registered > MOST_MODULES:
            raise ValueError(f"it has more than {MOST_MODULES:,} modules, which is too many to describe")

    hook = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


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
    is_mapping = isinstance(config, Mapping)
    try:
        return build(**config) if is_mapping else build(config)
    except Exception as error:  # each family has checks of its own, and mistakes, which raise any kind of error
        entries, config_class = (config, build) if is_mapping else (config.to_dict(), type(config))
        reason = " ".join(str(error).splitlines()[-1:]).strip() or type(error).__name__
        reason = f"it does not know {reason}" if isinstance(error, KeyError) else reason
        reason = reason if len(reason) <= _LONGEST_QUOTE else f"{reason[:_LONGEST_QUOTE]} …"
        odd = [f"{key}, which is {shown(entries[key])}" for key in _odd_entries(entries, config_class, str(error))]
        hint = f" (is it {', '.join(odd)}?)" if odd else ""
        raise ConfigError(f"transformers cannot make a model of this config: {reason}{hint}") from None


def _odd_entries(entries: Mapping[str, Any], config_class: Callable[..., Any], error: str) -> list[str]:
    """The entries that an error is probably about: those that it quotes, or that are unlike the family's defaults."""
    try:
        defaults = config_class().to_dict()
    except Exception:  # it was about to explain an error, and finds another one
        defaults = {}
    quoted = [key for key, value in entries.items() if _is_quoted(value, error)]
    return quoted or [key for key, value in entries.items() if _is_odd(value, defaults.get(key))][:_MOST_ODD]


def _is_quoted(value: Any, error: str) -> bool:
    if isinstance(value, Mapping | list | tuple):
        return any(_is_quoted(part, error) for part in (value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, str) and value != "" and repr(value) in error


def _is_odd(value: Any, default: Any) -> bool:
    """Whether a value is of another kind than the default, or a number out of the range of all sizes and factors."""
    if value is None or default is None:
        return False
    kinds = (bool, Real, str, list | tuple, Mapping)
    kind, usual = ([isinstance(each, kind) for kind in kinds] for each in (value, default))
    return kind != usual or (isinstance(value, int | float) and not 0 <= value < _LARGEST_SIZE)
