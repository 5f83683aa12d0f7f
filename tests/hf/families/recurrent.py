"""Families with state spaces, convolutions, linear attention, or indexers that choose what attention sees."""

from __future__ import annotations

from tests.hf.families.entries import Planned, Refused

PLANNED: dict[str, Planned] = {}
REFUSED: dict[str, Refused] = {}
NOT_YET: tuple[str, ...] = (
    "jamba",
    "nemotron_h",
    "granitemoehybrid",
    "lfm2_moe",
    "kimi_linear",
    "bailing_hybrid",
    "deepseek_v32",
    "glm_moe_dsa",
    "axk2",
)
