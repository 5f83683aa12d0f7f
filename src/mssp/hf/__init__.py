"""Hugging Face models: what their parameters are, the factors of their forward passes, plans over their configs.

    adapt(model, base)  ->  mssp.initialize, mssp.param_groups, mssp.verify need no claims

It imports planning, apply and nn. transformers is imported where a model or the Trainer is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.hf.adaptation import adapt, release
    from mssp.hf.building import from_config
    from mssp.hf.config_plans import plan
    from mssp.hf.folding import fold
    from mssp.hf.model_card import push
    from mssp.hf.named_plan import by_name
    from mssp.hf.parameters import checkpoint_infos
    from mssp.hf.proxies import Proxy, proxy
    from mssp.hf.saving import save_pretrained
    from mssp.hf.suggestions import Suggestions, suggest_claims
    from mssp.hf.trainer import PlanCallback, optimizer_factory

_HOMES = {
    "adaptation": ("adapt", "release"),
    "building": ("from_config",),
    "config_plans": ("plan",),
    "folding": ("fold",),
    "model_card": ("push",),
    "named_plan": ("by_name",),
    "parameters": ("checkpoint_infos",),
    "proxies": ("Proxy", "proxy"),
    "saving": ("save_pretrained",),
    "suggestions": ("Suggestions", "suggest_claims"),
    "trainer": ("PlanCallback", "optimizer_factory"),
}
__all__ = [
    "PlanCallback", "Proxy", "Suggestions", "adapt", "by_name", "checkpoint_infos", "fold", "from_config",
    "optimizer_factory", "plan", "proxy", "push", "release", "save_pretrained", "suggest_claims",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
