"""Plans from two configs of Hugging Face models, which warn of what the paper does not cover.

A base is the small model that was tuned, a target the large one. Neither torch nor ``transformers`` is needed.
"""

from __future__ import annotations

import warnings
from typing import Any

from mssp._constraints import a_config, optional, takes
from mssp.planning import plans
from mssp.planning.configs import gates_sum_to_one, loaded, outside_the_paper
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning
from mssp.planning.shape import Shape


@takes(target=a_config, base=optional(a_config))
def plan(target: Any, base: Any = None, **settings: Any) -> Plan:
    """Carry what was tuned on the model of one config to that of another.

    >>> small = {"model_type": "olmoe", "hidden_size": 256, "intermediate_size": 128, "num_experts": 8,
    ...          "num_experts_per_tok": 2, "num_hidden_layers": 4}
    >>> large = small | {"hidden_size": 2048, "intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 16}
    >>> carried = plan(large, small, lr=4e-3)
    >>> carried.regime, carried.roles["expert_in"].lr
    ('III', 0.0005)

    Args:
        target, base: configs as objects or mappings, or the paths of their folders or ``config.json`` files.
        settings: those of :func:`mssp.plan`.
    """
    target, base = loaded(target), loaded(base)
    settings = {"gates_sum_to_one": gates_sum_to_one(target)} | settings
    carried = plans.plan(Shape.from_config(target), None if base is None else Shape.from_config(base), **settings)
    noted = with_notes(carried, target, base)
    for note in noted.warnings[len(carried.warnings) :]:
        warnings.warn(note, PlanWarning, stacklevel=3)
    return noted


def with_notes(carried: Plan, target: Any, base: Any = None) -> Plan:
    """The plan with warnings of what is in the configs and not in the paper; without a target's config, as it is."""
    return carried if target is None else carried.with_warnings(outside_the_paper(base, target))
