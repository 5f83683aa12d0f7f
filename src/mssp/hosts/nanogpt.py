"""Hand-written loops in the style of nanoGPT: groups with an ``lr_scale`` that the loop multiplies.

Parameters have the names of nanoGPT (``transformer.h.0.attn.c_attn.weight``), and experts those of nanoMoE, which
stacks them with their inputs first: ``mlp.router``, ``mlp.experts.c_fc`` [experts, width, hidden],
``mlp.experts.c_proj``. Queries, keys and values are one matrix, which takes the queries' learning rate under SGD, where
the output side counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp.hosts import writing
from mssp.hosts.rows import Group, Parameter
from mssp.planning.setting import ADAM, ADAMW, SGD

if TYPE_CHECKING:
    from mssp.hosts.rows import Sizes
    from mssp.planning.plans import Plan

NAME = "nanoGPT"
OPTIMIZERS = (SGD, ADAM, ADAMW)
_BLOCK = "transformer.h.*"
VOCABULARY = [
    Parameter("transformer.wte.weight", "embedding", "any width"),
    Parameter("transformer.wpe.weight", "embedding", "any width"),
    Parameter(f"{_BLOCK}.ln_?.weight", "norm", "width"),
    Parameter(f"{_BLOCK}.ln_?.bias", "bias", "width"),
    Parameter(f"{_BLOCK}.attn.c_attn.weight", "hidden", "any width", rows="attention_width", like="query"),
    Parameter(f"{_BLOCK}.attn.c_attn.bias", "bias", "any"),
    Parameter(f"{_BLOCK}.attn.c_proj.weight", "hidden", "width attention_width", like="attention output"),
    Parameter(f"{_BLOCK}.attn.c_proj.bias", "bias", "width"),
    Parameter(f"{_BLOCK}.mlp.c_fc.weight", "hidden", "ffn_width width", like="dense input"),
    Parameter(f"{_BLOCK}.mlp.c_fc.bias", "bias", "any"),
    Parameter(f"{_BLOCK}.mlp.c_proj.weight", "hidden", "width ffn_width", like="dense output"),
    Parameter(f"{_BLOCK}.mlp.c_proj.bias", "bias", "width"),
    Parameter(f"{_BLOCK}.mlp.shared.c_fc.weight", "hidden", "shared_width width", like="shared input"),
    Parameter(f"{_BLOCK}.mlp.shared.c_fc.bias", "bias", "any"),
    Parameter(f"{_BLOCK}.mlp.shared.c_proj.weight", "hidden", "width shared_width", like="shared output"),
    Parameter(f"{_BLOCK}.mlp.shared.c_proj.bias", "bias", "width"),
    # A router is a plain matrix, or nanoMoE's two: for logits, and for the size of their noise.
    Parameter(f"{_BLOCK}.mlp.router.weight", "router", "experts width"),
    Parameter(f"{_BLOCK}.mlp.router.w_g.weight", "router", "experts width"),
    Parameter(f"{_BLOCK}.mlp.router.w_noise.weight", "router", "experts width"),
    Parameter(f"{_BLOCK}.mlp.router.bias", "router_bias", "experts"),
    Parameter(f"{_BLOCK}.mlp.experts.c_fc", "expert_in", "experts width expert_width"),
    Parameter(f"{_BLOCK}.mlp.experts.c_proj", "expert_out", "experts expert_width width"),
    Parameter(f"{_BLOCK}.mlp.experts.fc_bias", "expert_in_bias", "experts 1 expert_width"),
    Parameter(f"{_BLOCK}.mlp.experts.proj_bias", "expert_out_bias", "experts 1 width"),
    Parameter("transformer.ln_f.weight", "final_norm", "width"),
    Parameter("lm_head.weight", "readout", "any width"),
]


def write(plan: Plan, sizes: Sizes) -> str:
    """The Python file for a hand-written training loop."""
    summed = plan.multiplier("load_balance", relative=True) * plan.multiplier("residual", relative=True)
    instructions = [
        "optimizer = configure_optimizers(model) in place of the model's own method, and set_lr(optimizer, lr) in the "
        "loop where it sets the learning rate of this iteration: lr is what a schedule makes of LEARNING_RATE, and "
        "every group takes lr * lr_scale.",
        "initialize(model) once the model is built, after its own initialisation.",
        "In the forward pass RESIDUAL on what each block adds, and AGGREGATION on the sum over experts unless its "
        "gates sum to one; or, without touching the model, install_multipliers(model, gates_sum_to_one=...).",
        "A load-balancing loss that is 1 at uniform routing, as a mean over layers, keeps its weight. That of nanoMoE "
        f"is K in each layer and is summed over layers: multiply aux_loss_weight by {writing.literal(summed)}.",
        "The readout's own weight: drop the line that makes lm_head.weight the embedding's. No bias in ln_f.",
    ]
    if plan.setting.optimizer is SGD:
        instructions.append(writing.fused_note("c_attn"))
    if plan.grad_scale:
        instructions.append("scale_gradients(optimizer) once: gradients are scaled where the plan would scale eps.")
    constants = [
        f"LEARNING_RATE = {writing.literal(plan.lr)}",
        *writing.constants_of(plan),
        *writing.factors(plan),
    ]
    text = writing.file_text(
        plan, sizes, VOCABULARY, NAME, "nanogpt", instructions, constants, groups_name="GROUPS", write_group=_group
    )
    if plan.grad_scale:
        text += f"\n\n{writing.imports_and_definitions('gradients')[1]['scale_gradients']}\n"
    # ``exported/nanogpt.py`` is written with AdamW, whose name stands for that of the plan's optimizer.
    return text.replace("torch.optim.AdamW(", f"torch.optim.{plan.setting.optimizer.title}(")


def _group(plan: Plan, group: Group, _: int) -> str:
    entries = writing.numbers_of(plan, group)
    lr, power = entries.pop("lr")
    scaled = {"lr": (lr, ""), "lr_scale": (writing.literal(group.values.lr / plan.lr), power)}
    if plan.grad_scale:  # eps stays as tuned, and gradients are scaled by the inverse of its Power
        eps, power = entries.pop("eps")
        scaled |= {"eps": (eps, ""), "grad_scale": (writing.literal(group.values.grad_scale), f"({power})^-1")}
    return f"""\
    dict(
        # {writing.label_of(group)}
        patterns=[
{writing.pattern_lines('            "{}",', group.patterns)}
        ],
{writing.assignment_lines("        {}={},", scaled | entries)}
    ),"""
