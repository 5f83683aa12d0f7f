"""Hugging Face in one place: ``mssp.hf.adapt(model, base)`` and what goes with it. The work is done in ``adapters``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mssp.adapters.by_name import by_name
from mssp.adapters.config_plans import plan_configs as plan
from mssp.adapters.folding import fold
from mssp.adapters.parameters import checkpoint_infos
from mssp.adapters.transformers import adapt, release

if TYPE_CHECKING:
    from mssp.adapters.trainer import PlanCallback, optimizer_factory

__all__ = ["PlanCallback", "adapt", "by_name", "checkpoint_infos", "fold", "optimizer_factory", "plan", "release"]


def __getattr__(name: str) -> Any:
    if name not in ("PlanCallback", "optimizer_factory"):
        raise AttributeError(f"module 'mssp.hf' has no attribute {name!r}")
    from mssp.adapters import trainer  # imports transformers, and so is imported when asked for

    return getattr(trainer, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
