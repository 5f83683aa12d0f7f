"""The hosts by name, which are training frameworks, and ``export``, which writes a plan as a file for one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._constraints import a_plan, kind_of, one_of, optional, takes
from mssp.hosts import megatron, nanogpt, olmo_core, torchtitan
from mssp.hosts.rows import Sizes

if TYPE_CHECKING:
    from mssp.planning.plans import Plan

HOSTS = {"torchtitan": torchtitan, "megatron": megatron, "olmo-core": olmo_core, "nanogpt": nanogpt}


@takes(
    plan=a_plan,
    host=one_of(list(HOSTS)),
    sizes=optional(kind_of(Sizes)),
    qk_norm=optional(one_of(list(olmo_core.QK_NORMS))),
)
def export(plan: Plan, host: str, sizes: Sizes | None = None, qk_norm: str | None = None) -> str:
    """The text of a Python file with a plan for a training framework.

    >>> from mssp import Shape, plan
    >>> base = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
    >>> target = Shape(width=2048, expert_width=1024, experts=64, active=32, depth=8)
    >>> print(export(plan(target, base, lr=4e-3), "torchtitan").splitlines()[0][:28])
    # MSSP, Regime III, AdamW; p

    Args:
        host: one of :data:`HOSTS`.
        sizes: sides of hidden matrices that the plan does not know. Sides that are not given are taken to grow with the
            width, ranks to stay the same.
        qk_norm: for OLMo-core, whether norms of queries and keys are over the ``full`` width (default) or a ``head``.
    """
    if qk_norm is not None and host != "olmo-core":
        raise ValueError(f"qk_norm is a question for olmo-core only: {host} has one kind")
    module = HOSTS[host]
    if plan.setting.optimizer not in module.OPTIMIZERS:
        optimizers = " or ".join(map(str, module.OPTIMIZERS))
        raise ValueError(f"{module.NAME} does not take {plan.optimizer}: plan with {optimizers}")
    if plan.grad_scale and host != "nanogpt":
        raise ValueError(
            f"the plan scales gradients instead of eps, which {module.NAME} cannot: plan without grad_scale"
        )
    share = plan.roles["expert_in"].shared
    if 0 < share < 1:
        raise ValueError(
            f"experts share {share:.4g} of their start under this plan, which files for {module.NAME} cannot draw: "
            "initialize the model with mssp.initialize, or plan with scheme mup"
        )
    options = {"qk_norm": qk_norm} if qk_norm else {}
    return str(module.write(plan, sizes or Sizes(), **options))
