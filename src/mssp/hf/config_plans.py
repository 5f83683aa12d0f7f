"""Plans from two configs of Hugging Face models: their sizes, and what they hold that the paper does not cover.

Neither torch nor ``transformers`` is needed for this.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from mssp.planning import plans
from mssp.planning.configs import outside_the_paper, read_config
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning
from mssp.planning.shape import Shape


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
    before, after = _read(base), _read(target)
    made = plans.plan(Shape.from_config(after), None if before is None else Shape.from_config(before), **settings)
    noted = with_notes(made, after, before)
    for note in noted.warnings[len(made.warnings) :]:
        warnings.warn(note, PlanWarning, stacklevel=2)
    return noted


def with_notes(made: Plan, target: Any, base: Any = None) -> Plan:
    """A plan whose warnings also say what the configs hold that the paper does not cover."""
    before, after = _read(base), _read(target)
    return made if after is None else made.with_warnings(outside_the_paper(before, after))


def _read(config: Any) -> Any:
    return read_config(config) if isinstance(config, str | Path) else config
