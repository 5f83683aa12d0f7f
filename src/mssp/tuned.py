"""Multipliers tuned at N = 128, as data with their source.

The paper finds optima up to a million times away from all ones, and update terms six orders of magnitude apart without
tuning: a comparison of schemes that skips it compares nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from mssp.planning import DEFAULT_EPS, Plan

TUNED_ROLES = ("embedding", "router", "expert_in", "expert_out", "readout")


@dataclass(frozen=True)
class Tuned:
    """What was tuned for one setting: the learning rate, and factors on what the rules give.

    Args:
        lr_mult: learning-rate multipliers by role.
        init_mult: the global multiplier of initial weights.
        aggregation_mult: the factor on the aggregation's K^-1.
        top5: the validation top-5 accuracy that whoever tuned it reports.
    """

    lr: float
    init_mult: float = 1.0
    lr_mult: Mapping[str, float] = field(default_factory=dict)
    aggregation_mult: float = 1.0
    top5: float | None = None

    @classmethod
    def of(cls, plan: Plan) -> Tuned:
        """What a plan file carries; one that says more than a trial can hold is refused, not used in part."""
        more = {
            "base": plan.base is not None,
            "init_std": bool(plan.init_std),
            "init_mult by role": bool(set(plan.init_mult) - {"all"}),
            "weight decay": plan.weight_decay != 0,
            "eps": plan.eps not in (None, DEFAULT_EPS),
            "betas": plan.recipe.betas is not None,
            "as_printed": plan.as_printed,
            "grad_scale": plan.grad_scale,
        }
        for name, is_said in more.items():
            if is_said:
                raise ValueError(f"the plan's {name} cannot be used here: only a plan like those of mssp tune can")
        return cls(plan.lr, plan.init_mult.get("all", 1.0), dict(plan.lr_mult), plan.aggregation_mult)


def data_with_tuned_multipliers() -> tuple[str, ...]:
    return tuple(_known())


def tuned(
    data: str, optimizer: str, regime: str, scheme: str, *, active: int | None = None, readout: str = "zero"
) -> Tuned:
    """The multipliers kept for one setting of the MLP MoE.

    >>> tuned("tinyimagenet", "sgd", "II", "mssp").lr_mult["readout"]
    65536.0
    """
    if data not in _known():
        known = ", ".join(_known())
        raise ValueError(f"no multipliers were tuned for {data!r} (there are for {known}): mssp tune finds them")
    asked = {"optimizer": optimizer, "regime": regime, "active": active, "readout": readout}
    entries = _known()[data]["entries"]
    for entry in entries:
        if scheme in entry["schemes"] and all(entry[name] == value for name, value in asked.items()):
            return Tuned(
                entry["lr"], entry["init_mult"], entry["lr_mult"], entry["aggregation_mult"], entry.get("top5")
            )
    routing = "all experts" if active is None else f"{active} of 8 experts"
    raise ValueError(
        f"no multipliers were tuned on {data} for {optimizer}, Regime {regime}, {scheme}, {routing}, "
        f"readout {readout}: mssp tune finds them"
    )


def entries(data: str) -> list[dict[str, Any]]:
    """Every setting kept for a data set, as it stands in the file."""
    return list(_known()[data]["entries"])


@cache
def _known() -> dict[str, Any]:
    text = files("mssp").joinpath("tuned_multipliers.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
