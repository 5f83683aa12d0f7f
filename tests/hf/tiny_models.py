"""Small models of many families, each with a base and a target: sizes are written out, weights are random.

From BASE to TARGET everything grows, and by factors that tell roles apart: N x2, N_e x3, M x2, K x2, L x1.5. Heads keep
their size and grow in number. One matrix of one expert has 128 x 96 entries, enough to measure a standard deviation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import mssp
from mssp.planning.recipe import PlanWarning

BASE = mssp.Shape(width=64, expert_width=32, experts=4, active=2, depth=2)
TARGET = mssp.Shape(width=128, expert_width=96, experts=8, active=4, depth=3)
# Dense models: N x2, L x1.5, and FFNs that grow from 3 to 3.5 times the width.
DENSE_BASE = mssp.Shape(width=64, depth=2)
DENSE_TARGET = mssp.Shape(width=128, depth=3)
DENSE_FFN = {64: 192, 96: 320, 128: 448}
VOCABULARY = 128
HEAD = 16
INIT_STD = 0.02
Sizes = dict[str, Any]


def _usual(shape: mssp.Shape) -> Sizes:
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


def _low_ranks(shape: mssp.Shape) -> Sizes:
    """MLA: ranks of fixed size between sides that grow; the first layer is dense, one expert is shared."""
    return {
        "n_routed_experts": shape.experts,
        "moe_intermediate_size": shape.expert_width,
        "intermediate_size": 2 * shape.width,
        "num_key_value_heads": shape.width // HEAD,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_group": 2,
        "topk_group": 2,
    }


def mixtral(shape: mssp.Shape) -> Sizes:
    return {"num_local_experts": shape.experts, "intermediate_size": shape.expert_width}


def olmoe(shape: mssp.Shape) -> Sizes:
    return {"num_experts": shape.experts, "intermediate_size": shape.expert_width}


def qwen2_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width}
    return sizes | {"shared_expert_intermediate_size": 2 * shape.width, "intermediate_size": 2 * shape.width}


def qwen3_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    return sizes | {"intermediate_size": 2 * shape.width, "norm_topk_prob": True}


def qwen3_next(shape: mssp.Shape) -> Sizes:
    heads = {"linear_num_key_heads": shape.width // 32, "linear_num_value_heads": shape.width // 16}
    sizes = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "head_dim": HEAD}
    layers = {"layer_types": ["linear_attention"] * (shape.depth - 1) + ["full_attention"]}
    return qwen2_moe(shape) | heads | sizes | layers


def deepseek_v2(shape: mssp.Shape) -> Sizes:
    return _low_ranks(shape) | {"topk_method": "greedy", "head_dim": 8}


def deepseek_v3(shape: mssp.Shape) -> Sizes:
    return _low_ranks(shape) | {"num_mtp_layers": 0}


def gpt_oss(shape: mssp.Shape) -> Sizes:
    sizes = {"num_local_experts": shape.experts, "intermediate_size": shape.expert_width, "head_dim": HEAD}
    return sizes | {"sliding_window": 8}


def glm4_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"n_routed_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    more = {"intermediate_size": 2 * shape.width, "n_group": 2, "topk_group": 2, "first_k_dense_replace": 1}
    return sizes | more | {"use_qk_norm": True, "attention_bias": True, "num_mtp_layers": 0}


def granitemoeshared(shape: mssp.Shape) -> Sizes:
    return mixtral(shape) | {"shared_intermediate_size": 2 * shape.width}


def dots1(shape: mssp.Shape) -> Sizes:
    sizes = {"n_routed_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    more = {"intermediate_size": 2 * shape.width, "first_k_dense_replace": 1, "n_shared_experts": 1}
    return sizes | more | {"norm_topk_prob": False, "sliding_window": 8}


def ernie4_5_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"moe_num_experts": shape.experts, "moe_k": shape.active, "moe_intermediate_size": shape.expert_width}
    more = {"intermediate_size": 2 * shape.width, "moe_num_shared_experts": 1}
    return sizes | more | {"tie_word_embeddings": True}


def flex_olmo(shape: mssp.Shape) -> Sizes:
    return olmoe(shape)


def afmoe(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    return sizes | {"intermediate_size": 2 * shape.width, "num_dense_layers": 1, "num_shared_experts": 1}


def cohere2_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "intermediate_size": shape.expert_width, "head_dim": HEAD}
    return sizes | {"num_shared_experts": 1, "tie_word_embeddings": True, "sliding_window": 8}


def minimax_m2(shape: mssp.Shape) -> Sizes:
    return mixtral(shape) | {"head_dim": HEAD}


def hy_v3(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    layers = {"mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1)}
    return sizes | layers | {"intermediate_size": 2 * shape.width, "num_shared_experts": 1}


def kolibri1(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    layers = {"layer_types": ["sliding_attention"] * (shape.depth - 1) + ["full_attention"]}
    return sizes | layers | {"shared_expert_intermediate_size": 2 * shape.width, "sliding_window": 8}


FAMILIES: dict[str, Callable[[mssp.Shape], Sizes]] = {
    make.__name__: make
    for make in (
        mixtral, olmoe, qwen2_moe, qwen3_moe, qwen3_next, deepseek_v2, deepseek_v3, gpt_oss, glm4_moe, granitemoeshared,
        dots1, ernie4_5_moe, flex_olmo, afmoe, cohere2_moe, minimax_m2, hy_v3, kolibri1,
    )
}  # fmt: skip


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
    return CONFIG_MAPPING[family](**{**_usual(shape), **FAMILIES[family](shape), **changes})


def dense_config_of(family: str, shape: mssp.Shape, **changes: Any) -> Any:
    sizes = {key: size for key, size in _usual(shape).items() if key != "num_experts_per_tok"}
    ffn = {"intermediate_size": DENSE_FFN[shape.width]}
    return CONFIG_MAPPING[family](**{**sizes, **ffn, **DENSE_FAMILIES[family], **changes})


def model_of(config: Any, seed: int = 0) -> nn.Module:
    """A model with the weights that its library draws, in float32."""
    torch.manual_seed(seed)
    model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()


def plan_of(target: mssp.Shape = TARGET, base: mssp.Shape | None = BASE, **changes: Any) -> mssp.Plan:
    settings: dict[str, Any] = {"regime": "III", "lr": 1e-3, "weight_decay": 0.1, "init_std": INIT_STD}
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
