"""Small models of many families, each with a base and a target: sizes are written out, weights are random.

What families have of their own stands in ``tests.hf.families``.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

import mssp
from mssp.hf.meta import class_of
from mssp.hf.text_parts import freeze_other_parts
from mssp.planning.recipe import PlanWarning
from tests.hf.families import PLANNED, REFUSED, entries
from tests.hf.families.entries import Sizes

BASE, TARGET, VOCABULARY, HEAD = entries.BASE, entries.TARGET, entries.VOCABULARY, entries.HEAD
# Dense models: N x2, L x1.5, and FFNs that grow from 3 to 3.5 times the width.
DENSE_BASE = mssp.Shape(width=64, depth=2)
DENSE_TARGET = mssp.Shape(width=128, depth=3)
DENSE_FFN = {64: 192, 96: 320, 128: 448}
INIT_STD = 0.02


def usual_sizes(shape: mssp.Shape) -> Sizes:
    """What almost every config has."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.width // HEAD,
        "num_key_value_heads": shape.width // HEAD // 2,
        "num_experts_per_tok": shape.active,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


# The families that are planned, for which the tests of all families run.
FAMILIES = {name: entry.sizes for name, entry in PLANNED.items()}


def shapes_of(family: str) -> tuple[mssp.Shape, mssp.Shape]:
    """The target and the base of a family."""
    return shape_of(family, TARGET), shape_of(family, BASE)


def shape_of(family: str, shape: mssp.Shape) -> mssp.Shape:
    """The shape of a family's model at a shape for all families: it may have more blocks, or fewer active experts."""
    entry = PLANNED[family]
    return replace(shape, active=entry.active or shape.active, depth=shape.depth * entry.blocks)


# Of dense families: key heads stay as they are in some, and grow in others.
_TWO_KEY_HEADS = {"num_key_value_heads": 2}
DENSE_FAMILIES: dict[str, Sizes] = {
    "llama": {},
    "mistral": _TWO_KEY_HEADS | {"sliding_window": 8},
    "qwen2": _TWO_KEY_HEADS,
    "qwen3": {"head_dim": HEAD, "tie_word_embeddings": True},
    "gemma3_text": _TWO_KEY_HEADS | {"head_dim": HEAD, "sliding_window": 8, "query_pre_attn_scalar": HEAD},
    "olmo2": {},
}


def config_of(family: str, shape: mssp.Shape, **changes: Any) -> Any:
    entry = (PLANNED | REFUSED)[family]
    sizes = {**usual_sizes(shape), **entry.sizes(shape), **changes}
    if entry.larger:
        tied = {"tie_word_embeddings": bool(sizes.get("tie_word_embeddings"))}
        beside = entry.beside(shape) if entry.beside else {}
        return CONFIG_MAPPING[entry.larger](text_config=sizes, **beside, **tied)
    return CONFIG_MAPPING[family](**sizes)


def dense_config_of(family: str, shape: mssp.Shape, **changes: Any) -> Any:
    sizes = {key: size for key, size in usual_sizes(shape).items() if key != "num_experts_per_tok"}
    ffn = {"intermediate_size": DENSE_FFN[shape.width]}
    return CONFIG_MAPPING[family](**{**sizes, **ffn, **DENSE_FAMILIES[family], **changes})


def model_of(config: Any, seed: int = 0) -> nn.Module:
    """A model with the weights that its library draws, in float32."""
    torch.manual_seed(seed)
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    else:
        unlisted = class_of(config)
        assert unlisted is not None
        model = unlisted(config)
        freeze_other_parts(model)
    return model.eval()


def plan_of(target: mssp.Shape = TARGET, base: mssp.Shape | None = BASE, **changes: Any) -> mssp.Plan:
    settings: dict[str, Any] = {"regime": "III", "lr": 1e-3, "weight_decay": 0.1, "init_std": INIT_STD}
    with warnings.catch_warnings():
        if base is not None and target.active == base.active:
            warnings.filterwarnings("ignore", "the active share|regime III is used", PlanWarning)
        return mssp.plan(target, base, **{**settings, **changes})


def initialized(model: nn.Module, plan: mssp.Plan, seed: int = 0) -> nn.Module:
    """Initial weights, without the warnings about gates and tied readouts that have tests of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        mssp.initialize(model, plan, seed=seed)
    return model


def tokens(seed: int = 0, batch: int = 2, length: int = 12) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    found: Tensor = model(tokens()).logits
    return found


def traces(model: nn.Module) -> dict[str, tuple[set[str], int]]:
    """All that could be left on a model: names of attributes and numbers of hooks, module by module."""
    return {
        path: (set(vars(module)), len(module._forward_hooks) + len(module._forward_pre_hooks))
        for path, module in model.named_modules()
    }
