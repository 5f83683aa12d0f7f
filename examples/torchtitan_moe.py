"""A plan in torchtitan: a Mixture-of-Experts model of its Qwen3 family, with the exported initial values and groups.

    python examples/torchtitan_moe.py        # needs torchtitan 0.3.0; no GPU

What a training run adds is in ``trainer_config``: the optimizer, and ``plan_model`` first in the parallelize function.
torchtitan's attention trains on GPUs only, so here the model is built, filled and grouped, and one forward pass is run.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

import mssp
from exported_file import imported, installed
from mssp.hosts import Sizes

BASE = mssp.Shape(width=32, expert_width=16, experts=4, active=2, depth=1)
TARGET = mssp.Shape(width=64, expert_width=32, experts=8, active=4, depth=2)
HEADS, HEAD, VOCABULARY, CONTEXT = 8, 16, 256, 128


def model_config() -> Any:
    """Qwen3 with experts, at the target's sizes. Sigmoid gates: equal experts need gates that do not sum to one."""
    from torchtitan.models import qwen3
    from torchtitan.models.common.rope import CosSinRoPE

    config = qwen3.qwen3_configs["debugmodel_moe"](attn_backend="flex")
    width = TARGET.width
    config.layers = qwen3._build_qwen3_moe_layers(
        n_layers=TARGET.depth, dim=width, n_heads=HEADS, n_kv_heads=HEADS // 2, head_dim=HEAD,
        moe_hidden_dim=TARGET.expert_width, num_experts=TARGET.experts, top_k=TARGET.active,
        attn_backend="flex", moe_comm_backend="standard",
        rope=CosSinRoPE.Config(dim=HEAD, max_seq_len=CONTEXT, theta=10000.0),
    )  # fmt: skip
    for layer in config.layers:
        layer.moe.router.score_func, layer.moe.router.route_norm = "sigmoid", False
    embeddings = replace(config.tok_embeddings, num_embeddings=VOCABULARY, embedding_dim=width)
    head = replace(config.lm_head, in_features=width, out_features=VOCABULARY)
    norm = qwen3._qwen3_norm(width)
    return replace(config, dim=width, vocab_size=VOCABULARY, tok_embeddings=embeddings, lm_head=head, norm=norm)


def trainer_config(planned: ModuleType, config: Any) -> Any:
    """In your own config: the plan's optimizer, and the plan before anything is sharded."""
    from torchtitan.models.qwen3 import model_registry, parallelize_qwen3
    from torchtitan.trainer import Trainer

    def parallelize(model: torch.nn.Module, **options: Any) -> Any:
        planned.plan_model(model)
        return parallelize_qwen3(model, **options)

    spec = replace(model_registry("debugmodel_moe"), model=config, parallelize_fn=parallelize)
    return Trainer.Config(model_spec=spec, optimizer=planned.OPTIMIZER)


def main() -> None:
    plan = mssp.plan(TARGET, BASE, lr=4e-3, weight_decay=0.1)
    if not installed("torchtitan", "torchtitan==0.3.0"):
        return
    # Eight heads of 16 are twice the width here, as they were at the base.
    sizes = Sizes(target={"attention_width": HEADS * HEAD}, base={"attention_width": HEADS * HEAD // 2})
    planned = imported(plan, "torchtitan", sizes)
    with torch.device("meta"):
        model = model_config().build()
    planned.plan_model(model)
    model.to_empty(device="cpu")
    model.init_states()
    optimizers = planned.OPTIMIZER.build(model_parts=[model])
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            numbers = f"lr {group['lr']:.4g}, eps {group['eps']:.4g}, weight decay {group['weight_decay']:.4g}"
            print(f"{group['param_names'][0]:<52} {len(group['params'])} parameters: {numbers}")
    tokens = torch.randint(VOCABULARY, (2, CONTEXT))
    positions = torch.arange(CONTEXT).expand(2, CONTEXT)
    with torch.no_grad():
        logits = model(tokens, positions, model.get_attention_masks(positions))
    experts = model.layers["0"].moe.routed_experts.inner_experts.w1_EFD
    print(f"experts start equal: {bool((experts == experts[0]).all())}; logits start at {float(logits.abs().max())}")


if __name__ == "__main__":
    main()
