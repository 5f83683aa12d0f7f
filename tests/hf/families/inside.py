"""Families of text models that are there only inside multimodal ones, which hold their readout."""

from __future__ import annotations

from tests.hf.families.entries import Planned, Refused

PLANNED: dict[str, Planned] = {}
REFUSED: dict[str, Refused] = {}
NOT_YET: tuple[str, ...] = (
    "deepseek_ocr2_text",
    "ernie4_5_vl_moe_text",
    "glm4v_moe_text",
    "glm5_next_text",
    "muse_spark_text",
    "qwen3_omni_moe_text",
    "qwen3_vl_moe_text",
    "step3p5",
    "unlimited_ocr_text",
)
