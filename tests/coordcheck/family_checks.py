"""One cell of a record: the check of one family of Hugging Face along one growth, with a plan and as it comes.

All cells have the same learning rate, batch and number of updates, those that the first three families were checked
with: one rate at which the smallest models train well (docs/huggingface.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import mssp
from mssp import Shape
from mssp.coordcheck.result import Check
from mssp.data import TokenOrder, python_tokens
from mssp.planning.recipe import without_plan_warnings
from tests.coordcheck.hugging_face_models import DEVICE, LENGTH, VOCABULARY, as_it_comes, one_rate
from tests.hf.tiny_models import INIT_STD, config_of, model_of, shape_of

WIDTHS, DEPTH = (64, 128, 256), 2
STEPS, LR, BATCH = 4, 1e-3, 4
TEN = (
    "olmoe", "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "deepseek_v3", "glm4_moe", "gpt_oss", "ernie4_5_moe",
    "minimax_m2",
)  # fmt: skip
GROWTHS: Mapping[str, Callable[[int], Shape]] = {
    "II": lambda n: Shape(n, 16, n // 8, n // 16, DEPTH),
    "III": lambda n: Shape(n, n // 2, n // 16, n // 32, DEPTH),
    "K": lambda n: Shape(n, n // 2, n // 8, 2, DEPTH),
    "K-and-N_e": lambda n: Shape(n, 32, n // 8, 2, DEPTH),
}
WORDS = {
    "II": "II: M = N/8, K = M/2, N_e = 16",
    "III": "III: M = N/16, K = M/2, N_e = N/2",
    "K": "K = 2 fixed: M = N/8, N_e = N/2 (κ = 1)",
    "K-and-N_e": "K = 2, N_e = 32 fixed: M = N/8 (κ = 64/N)",
}


# Linear attention has outputs (q · k) v, whose size falls as one over that of a head. Qwen3-Next's released heads have
# 128 units and its norm an eps of 1e-6, which half of all outputs are below in the square; of heads of 16, one in ten
# is, and the norm divides what is next to zero. This eps is to heads of 16 what 1e-6 is to heads of 128.
_EPS_OF_SMALL_HEADS = 1e-6 * (128 / 16) ** 2


@cache
def _text() -> npt.NDArray[np.uint8]:
    """Python's source with one blank for every run of white space.

    A third of indented code is blanks. Of so few tokens, a gradient is then mostly what one of them sends, which does
    not average out: exponents of one seed differ from the next one's by half a power.
    """
    rows = TokenOrder(python_tokens(), "train", sequence=4095, seed=0).rows(0, 64)
    return np.frombuffer(re.sub(rb"\s+", b" ", rows.astype(np.uint8).tobytes()), np.uint8)


def texts() -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets of every update."""
    random, text, batches = np.random.default_rng(0), _text(), []
    for _ in range(STEPS):
        begins = random.integers(len(text) - LENGTH, size=BATCH)
        rows = np.stack([text[begin : begin + LENGTH] for begin in begins]).astype(np.int64)
        tokens = torch.from_numpy(rows).to(DEVICE)
        batches.append((tokens[:, :-1], tokens[:, 1:]))
    return batches


def changes_of(family: str, growth: str) -> dict[str, Any]:
    """What a config needs: softmax gates that are not renormalised fall with K/M at a fixed K, as plans warn.

    Step's must have a row for padding, which is that of a byte no text has.
    """
    falls = growth not in ("II", "III") and family in ("olmoe", "qwen2_moe")
    shares = {"norm_topk_prob": True} if falls else {}
    padding = {"pad_token_id": VOCABULARY - 1} if family == "step3p5" else {}
    return padding | shares | ({"rms_norm_eps": _EPS_OF_SMALL_HEADS} if family == "qwen3_next" else {})


def checked(
    family: str, growth: str, *, plain: bool = False, seeds: int = 3, widths: tuple[int, ...] = WIDTHS, **how: Any
) -> Check:
    """The check of a family along a growth; ``plain`` is the model as it comes, N(0, 0.02) under one learning rate.

    What else ``mssp.check`` takes may be said, for an experiment that breaks a rule.
    """
    shapes = [GROWTHS[growth](width) for width in widths]
    sizes = {"vocab_size": VOCABULARY, "pad_token_id": None, **changes_of(family, growth)}
    configs = {shape_of(family, shape): config_of(family, shape, **sizes) for shape in shapes}
    (base, *_, target), seed = configs.values(), count()

    def build(shape: Shape) -> nn.Module:
        model = model_of(configs[shape], next(seed))  # what a model keeps of its own differs from seed to seed
        mssp.hf.adapt(model, base=base)
        return model.train()

    # A readout that is the embedding has logits of order √N unless the embedding starts small, as plans warn.
    start = {"init_std": {"embedding": INIT_STD}} if getattr(base, "tie_word_embeddings", False) else {}
    how |= {"initialize": as_it_comes, "optimizer": one_rate(LR)} if plain else {}
    with without_plan_warnings():
        regime = growth if growth in ("II", "III") else "any"
        plan = mssp.hf.plan(target, base, regime=regime, lr=LR, **start)
        return mssp.check(build, list(configs), texts(), plan, seeds=seeds, device=DEVICE, **how)
