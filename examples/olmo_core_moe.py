"""A plan in OLMo-core: a Mixture-of-Experts Transformer with the exported initial values, groups and factors.

    python examples/olmo_core_moe.py        # needs ai2-olmo-core 3.0.0; no GPU

In a training script ``group_overrides`` goes into the optimizer's config of the train module, and ``initialize`` and
``install_multipliers`` follow ``init_weights``. OLMo-core's experts need a GPU to run, so the model is built, filled
and grouped here.
"""

from __future__ import annotations

from typing import Any

import torch

import mssp
from exported_file import imported, installed
from mssp.hosts import Sizes

BASE = mssp.Shape(width=32, expert_width=16, experts=4, active=2, depth=1)
TARGET = mssp.Shape(width=64, expert_width=32, experts=8, active=4, depth=2)


def model_config() -> Any:
    """A pre-norm Transformer with a shared expert. Sigmoid gates: equal experts need gates that do not sum to one."""
    from olmo_core.nn.moe import MoERouterGatingFunction
    from olmo_core.nn.transformer import TransformerConfig

    config = TransformerConfig.llama_like_moe(
        d_model=TARGET.width, vocab_size=256, n_layers=TARGET.depth, n_heads=4, num_experts=TARGET.experts,
        top_k=TARGET.active, expert_hidden_size=TARGET.expert_width, shared_expert_hidden_size=TARGET.width,
    )  # fmt: skip
    config.block.feed_forward_moe.router.gating_function = MoERouterGatingFunction.sigmoid
    return config


def main() -> None:
    plan = mssp.plan(TARGET, BASE, lr=4e-3, weight_decay=0.1)
    if not installed("olmo_core", "ai2-olmo-core==3.0.0"):
        return
    from olmo_core.optim import AdamWConfig

    planned = imported(plan, "olmo-core", Sizes(target={"shared_width": TARGET.width}))
    model = model_config().build(init_device="meta")
    model.init_weights(device=torch.device("cpu"))
    planned.initialize(model)
    hooks = planned.install_multipliers(model)
    optimizer = AdamWConfig(lr=plan.lr, group_overrides=planned.group_overrides(model)).build(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        numbers = f"lr {group['lr']:.4g}, eps {group['eps']:.4g}, weight decay {group['weight_decay']:.4g}"
        print(f"{names[id(group['params'][0])]:<44} {len(group['params'])} parameters: {numbers}")
    experts = model.blocks["0"].feed_forward_moe.experts.mlp.w1.unflatten(0, (TARGET.experts, -1))
    print(f"experts start equal: {bool((experts == experts[0]).all())}; {len(hooks)} hooks")


if __name__ == "__main__":
    main()
