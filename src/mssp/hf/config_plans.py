"""Plans from two configs of Hugging Face models, which warn of what the paper does not cover.

A base is the small model that was tuned, a target the large one. Both are built without memory, which shows the sides
of every matrix. Without ``transformers`` a plan has no sides, and is made only where all sizes grow by one factor.
"""

from __future__ import annotations

import copy
import warnings
from importlib.util import find_spec
from typing import Any

from mssp._constraints import a_config, optional, takes
from mssp.planning import plans
from mssp.planning.configs import (
    Config,
    entries_of,
    family_of,
    gates_sum_to_one,
    loaded,
    outside_the_paper,
    refuse_uneven,
)
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning
from mssp.planning.shape import Shape


@takes(target=a_config, base=optional(a_config))
def plan(target: Any, base: Any = None, **settings: Any) -> Plan:
    """Carry what was tuned on the model of one config to that of another.

    >>> small = {"model_type": "olmoe", "hidden_size": 256, "intermediate_size": 128, "num_experts": 8,
    ...          "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_attention_heads": 2}
    >>> large = small | {"hidden_size": 2048, "intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 16,
    ...                  "num_attention_heads": 16}
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
    noted = with_sides(with_notes(carried, target, base), target, base)
    for note in noted.warnings[len(carried.warnings) :]:
        warnings.warn(note, PlanWarning, stacklevel=3)
    return noted


def with_notes(carried: Plan, target: Any, base: Any = None) -> Plan:
    """The plan with warnings of what is in the configs and not in the paper; without a target's config, as it is."""
    return carried if target is None else carried.with_warnings(outside_the_paper(base, target, _filled))


def _filled(entries: Config) -> Config:
    """The entries of a config with the family's defaults for those that it leaves out, where transformers has them.

    What a plan has set in the config of an adapted model is what it was before.
    """
    if family_of(entries) is None or find_spec("transformers") is None:
        return entries
    from mssp.hf.balancing import with_own_coefficients
    from mssp.hf.meta import config_of

    entries = with_own_coefficients(entries)
    try:
        return {**config_of(copy.deepcopy(dict(entries))).to_dict(), **entries}
    except ValueError:  # a family that is not known, of which the plan has no table by name either
        return entries


def with_sides(carried: Plan, target: Any, base: Any = None) -> Plan:
    """The plan with the sides of its models' matrices, which building them shows.

    Of a plan that was extended, the sides at the base are known already. Where no model can be built or described, a
    warning says why the plan has no sides.
    """
    if target is None or family_of(entries_of(target)) is None:
        return carried
    if find_spec("transformers") is None:
        refuse_uneven(target, base)
        return carried
    from mssp.hf.sides import sides_between

    try:
        return carried.with_sides(sides_between(carried, target, base))
    except ValueError as error:
        return carried.with_warnings([f"the sides of matrices are not known: {error}"])
