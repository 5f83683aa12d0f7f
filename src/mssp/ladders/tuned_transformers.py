"""Tuned learning rates and multipliers of the paper's Transformers, as arguments of a plan."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from mssp._constraints import takes
from mssp.planning.setting import MSSP, REGIME, SCHEME, Regime, Scheme, regime_named, scheme_named

_ARGUMENTS = ("lr", "init_std", "lr_mult", "init_mult")


@takes(regime=REGIME, scheme=SCHEME)
def transformer_multipliers(regime: str | Regime, scheme: str | Scheme = MSSP) -> dict[str, Any]:
    """What the authors tuned at width 256: arguments of :func:`mssp.plan`, for a step from their base to a target.

    >>> import mssp
    >>> tuned = transformer_multipliers("II")
    >>> base = mssp.Shape(width=256, expert_width=32, experts=32, active=16, depth=4)
    >>> target = mssp.Shape(width=2048, expert_width=32, experts=256, active=128, depth=4)
    >>> plan = mssp.plan(target, base, regime="II", residual_rule="one", **tuned)
    >>> plan.lr_mult["expert_out"], round(plan.roles["expert_out"].lr, 4)
    (256.0, 1.9821)

    The package's file has their source and their setting; ``mssp train`` has both as recipes.
    """
    regime, scheme = regime_named(regime), scheme_named(scheme)
    for entry in _document()["entries"]:
        if entry["regime"] == regime.name and scheme.name in entry["schemes"]:
            return {name: entry[name] for name in _ARGUMENTS}
    raise ValueError(
        f"no multipliers of Transformers were tuned for Regime {regime} and {scheme}: there are those of mup and mssp "
        "in Regimes II and III"
    )


def _document() -> dict[str, Any]:
    text = files("mssp.ladders").joinpath("transformer_multipliers.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
