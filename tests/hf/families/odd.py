"""Families whose blocks are unlike Llama's: scaled streams, several streams, routers of their own."""

from __future__ import annotations

from tests.hf.families.entries import Planned, Refused

PLANNED: dict[str, Planned] = {}
REFUSED: dict[str, Refused] = {}
NOT_YET: tuple[str, ...] = (
    "llama4_text",
    "phimoe",
    "jetmoe",
    "doge",
    "dbrx",
    "longcat_flash",
    "zaya",
    "inkling_text",
    "gemma4_text",
    "hy_v4",
    "qwen4_exp_text",
    "deepseek_v4",
)
