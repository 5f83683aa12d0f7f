"""A plan in Megatron-core: a GPT with experts, filled and grouped as exported, under Megatron's own scheduler.

    python examples/megatron_moe.py        # needs megatron-core 0.16.1; no GPU

``get_megatron_optimizer(config, chunks, config_overrides=planned.config_overrides(0.1))`` is what a training script
calls. That and the forward pass need CUDA; here the parameter groups it makes go to torch's AdamW, which it wraps.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

import mssp
from exported_file import imported, installed

BASE = mssp.Shape(width=32, expert_width=16, experts=4, active=2, depth=1)
TARGET = mssp.Shape(width=64, expert_width=32, experts=8, active=4, depth=2)
VOCABULARY, CONTEXT, WARMUP, STEPS = 64, 16, 5, 30


def build() -> Any:
    """A GPTModel at the target's sizes, in one process on the CPU."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(
        num_layers=TARGET.depth, hidden_size=TARGET.width, num_attention_heads=4, ffn_hidden_size=4 * TARGET.width,
        num_moe_experts=TARGET.experts, moe_router_topk=TARGET.active, moe_ffn_hidden_size=TARGET.expert_width,
        moe_router_score_function="sigmoid", moe_router_load_balancing_type="none", add_bias_linear=False,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, normalization="RMSNorm",
        hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(num_experts=TARGET.experts, moe_grouped_gemm=False, normalization="RMSNorm")
    return GPTModel(
        config, spec, vocab_size=VOCABULARY, max_sequence_length=CONTEXT, position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )  # fmt: skip


def main() -> None:
    plan = mssp.plan(TARGET, BASE, lr=4e-3, weight_decay=0.1)
    if not installed("megatron", "megatron-core==0.16.1"):
        return
    warnings.simplefilter("ignore")  # Megatron's, about Transformer Engine and Apex
    from megatron.core.optimizer import OptimizerConfig, _get_param_groups
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    planned = imported(plan, "megatron")
    model = build()
    planned.initialize(model)
    hooks = planned.install_multipliers(model)
    groups = _get_param_groups([model], OptimizerConfig(lr=plan.lr, min_lr=0.0), planned.config_overrides(0.1))
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]])
    schedule = OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=plan.lr, min_lr=0.0, lr_warmup_steps=WARMUP, lr_decay_steps=STEPS,
        lr_decay_style="cosine", start_wd=0.0, end_wd=0.0, wd_incr_steps=STEPS, wd_incr_style="constant",
    )  # fmt: skip
    schedule.step(WARMUP)  # where learning rates are the plan's
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        numbers = f"lr {group['lr']:.4g}, eps {group['eps']:.4g}, weight decay {group['weight_decay']:.4g}"
        print(f"{names[id(group['params'][0])]:<62} {len(group['params'])} parameters: {numbers}")
    first, last = (model.decoder.layers[0].mlp.experts.local_experts[expert] for expert in (0, -1))
    equal = torch.equal(first.linear_fc1.weight, last.linear_fc1.weight)
    print(f"experts start equal: {equal}; {len(hooks)} hooks")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
