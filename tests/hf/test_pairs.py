"""Pairs of released models: what a plan says of each step, from configs of their real sizes (``pairs/README.md``).

Numbers of routers and experts are worked out by hand from the growth factors n, n_e, m, k and l. Tuned at the base are
lr 0.004, eps 1e-8 and a std of 0.02. For a growth that is no regime's, docs/growth.md has the rules:

    router      std  n^-1/2 min(1, k/n)^1/2          lr  1/n    eps  1/(m l)
    expert_in   std  n^-1/2                          lr  1/n    eps  1/(m n_e l)
    expert_out  std  n_e^-1/2 min(k, n/n_e)^1/2      lr  1/n_e  eps  1/(m n l)
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import mssp
from mssp.cli import main
from mssp.hf.meta import config_of, on_meta
from mssp.planning.configs import sizes_of
from mssp.planning.growth import Growth
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.shape import Shape
from tests.hf.tiny_models import config_of as tiny_config
from tests.hf.tiny_models import model_of, tokens

PAIRS = Path(__file__).parent / "pairs"


class Step(NamedTuple):
    """A pair: its regime, κ and ρ to three digits, and the parameters of base and target in billions, as published."""

    regime: str
    kappa: float
    share: float
    published: tuple[float, float] | None


STEPS = {
    "qwen3-235b": Step("I", 1.0, 0.0, (30.5, 235)),
    "mixtral-8x22b": Step("any", 0.762, 0.0, (46.7, 140.6)),
    "gpt-oss-120b": Step("any", 1.0, 0.0, (20.9, 116.8)),
    "deepseek-v2": Step("any", 0.436, 0.0, (15.7, 236)),
    "glm-4.5": Step("any", 0.873, 0.0, (106, 353)),  # 355 with the layer for the next token but one
    "deepseek-v3": Step("any", 1.27, 0.0385, (236, 671)),
    "qwen3-coder-480b": Step("any", 1.11, 0.0159, (30.5, 480)),
    "qwen2-57b": Step("any", 2.08, 0.154, (14.3, 57.4)),
    "qwen3.5-122b": Step("any", 1.33, 0.0476, (35, 122)),
    "qwen3.5-397b": Step("any", 1.25, 0.0278, (35, 397)),
    "ernie-4.5-300b": Step("any", 0.972, 0.0, (21.9, 300)),
    "granite-3b-a800m": Step("any", 0.667, 0.0, (1.33, 3.3)),
    "trinity-mini": Step("any", 2.0, 0.143, (6.12, 26.1)),
    "kimi-k2": Step("any", 0.554, 0.0, (16.0, 1026)),
    "phi-3.5-moe": Step("any", 6.67, 1.0, (7.6, 41.9)),
    "llama-4-maverick": Step("any", 1.0, 0.0, (108, 401)),
    "jamba-1.5-large": Step("any", 0.857, 0.0, (51.6, 398.6)),
    "longcat-flash": Step("any", 1.0, 0.0, None),
}
# Pairs of which there is no plan by name, each with the reason.
REFUSED = {
    # The base has no low ranks of queries, or no norms of them: what was tuned there says nothing of theirs.
    "deepseek-v2": "the base has no model.layers.*.self_attn.q_a_proj.weight: base and target must be of one arch",
    "kimi-k2": "the base has no model.layers.*.self_attn.q_a_proj.weight: base and target must be of one architecture",
    "glm-4.5": "the base has no model.layers.*.self_attn.q_norm.weight: base and target must be of one architecture",
    "deepseek-v3": "the base is a deepseek_v2, the model a deepseek_v3: base and target must be of one architecture",
    # State-space layers that no rule is known for.
    "jamba-1.5-large": "model.layers.*.mamba.x_proj.weight: a state-space parameter (Mamba 1), for which no rule is",
    "llama-4-maverick": "the base has no model.layers.*.feed_forward.gate_proj.weight: base and target must be of one",
}
# What changes between the configs of a pair and is outside of the theory, by the names that the configs have.
CHANGES = {
    "deepseek-v2": {
        "routed_scaling_factor changes from 1.0 to 16.0", "n_group changes from 1 to 8",
        "topk_group changes from 1 to 3", "topk_method changes from greedy to group_limited_greedy",
        "q_lora_rank changes from none to 1536",
    },
    "deepseek-v3": {
        "routed_scaling_factor changes from 16.0 to 2.5", "norm_topk_prob changes from False to True",
        "scoring_func changes from softmax to sigmoid", "topk_group changes from 3 to 4",
        "topk_method changes from group_limited_greedy to noaux_tc", "n_shared_experts changes from 2 to 1",
        "first_k_dense_replace changes from 1 to 3",
    },
    "glm-4.5": {
        "routed_scaling_factor changes from 1.0 to 2.5", "use_qk_norm changes from False to True",
        "first_k_dense_replace changes from 1 to 3",
    },
    "kimi-k2": {
        "routed_scaling_factor changes from 2.446 to 2.827", "n_shared_experts changes from 2 to 1",
        "q_lora_rank changes from none to 1536",
    },
    "ernie-4.5-300b": {
        "moe_num_shared_experts changes from 2 to 0", "moe_layer_start_index changes from 1 to 3",
    },
    "llama-4-maverick": {
        "use_qk_norm changes from True to False", "interleave_moe_layer_step changes from 1 to 2",
    },
}  # fmt: skip


class Numbers(NamedTuple):
    """The numbers of routers and experts, and the residual factor over the base's."""

    std: tuple[float, float]  # of router and expert_out
    lr: tuple[float, float, float]  # of router, expert_in and expert_out
    eps: tuple[float, float, float]
    residual: float


BY_HAND = {
    # n = n_e = 2, l = 94/48 = 1.958, Regime I. Top-K of zeros would choose at random, so the router starts at
    # n^-1/2 min(1, 1/2)^1/2 = 1/2. eps of Regime I: 1/l = 0.5106 of the router, 1/(n l) = 0.2553 of the experts.
    "qwen3-235b": Numbers((0.01, 0.0141421), (2e-3, 2e-3, 2e-3), (5.10638e-9, 2.55319e-9, 2.55319e-9), 48 / 94),
    # n = 3/2, n_e = 8/7, l = 7/4; κ = 16/21. Router: 1/n = 2/3. expert_out: min(1, 21/16) = 1, so (7/8)^1/2 = 0.93541.
    # eps: 1/l = 4/7; 1/(n_e l) = 1/2; 1/(n l) = 8/21.
    "mixtral-8x22b": Numbers(
        (0.0133333, 0.0187083), (2.66667e-3, 2.66667e-3, 3.5e-3), (4e-8 / 7, 5e-9, 8e-8 / 21), 4 / 7
    ),
    # m = 4, l = 3/2, and nothing else grows; κ = 1. eps: 1/(m l) = 1/6 of all three.
    "gpt-oss-120b": Numbers((0.02, 0.02), (4e-3, 4e-3, 4e-3), (1e-8 / 6, 1e-8 / 6, 1e-8 / 6), 2 / 3),
    # n = m = 5/2, n_e = 12/11, l = 20/9; κ = 24/55. Router: 2/5. expert_out: (11/12)^1/2 = 0.957427.
    # eps: 1/(m l) = 9/50; 1/(m n_e l) = 33/200; 1/(m n l) = 18/250.
    "deepseek-v2": Numbers((0.008, 0.0191485), (1.6e-3, 1.6e-3, 3.66667e-3), (1.8e-9, 1.65e-9, 7.2e-10), 0.45),
    # n = m = 5/4, n_e = 12/11, l = 2; κ = 48/55. Router: 4/5. expert_out: (11/12)^1/2.
    # eps: 1/(m l) = 2/5; 1/(m n_e l) = 11/30; 1/(m n l) = 8/25.
    "glm-4.5": Numbers((0.016, 0.0191485), (3.2e-3, 3.2e-3, 3.66667e-3), (4e-9, 3.66667e-9, 3.2e-9), 1 / 2),
    # n = 7/5, n_e = k = 4/3, m = 8/5, l = 61/60; κ = 80/63, ρ = (17/63)/7. Router: (5/7 · 20/21)^1/2 = 0.824786.
    # expert_out: min(4/3, 21/20) = 1.05, so (1.05 · 3/4)^1/2 = 0.887412. Gates sum to one and experts share a part of
    # their start, so the router's eps is 1/(n^1/2 m l) = 1/(1.183216 · 1.626667) = 0.519562; 1/(m n_e l) = 0.461066;
    # 1/(m n l) = 0.439110.
    "deepseek-v3": Numbers(
        (0.0164957, 0.0177482), (2.857143e-3, 2.857143e-3, 3e-3), (5.19562e-9, 4.61066e-9, 4.39110e-9), 60 / 61
    ),
    # n = 2, n_e = 4, l = 4/7; κ = 2, ρ = 1/7. Router: 1/2. expert_out: min(1, 1/2)^1/2 · 4^-1/2 = 0.353553.
    # eps: 1/(n^1/2 l) = 1.237437 as gates sum to one; 1/(n_e l) = 7/16; 1/(n l) = 7/8.
    "trinity-mini": Numbers((0.01, 0.00707107), (2e-3, 2e-3, 1e-3), (1.237437e-8, 4.375e-9, 8.75e-9), 7 / 4),
}


def files(pair: str) -> tuple[Path, Path]:
    return PAIRS / pair / "base.json", PAIRS / pair / "target.json"


def planned(pair: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any], str]:
    """What ``mssp plan`` ends with for a pair: its exit code, its document, its other output."""
    base, target = map(str, files(pair))
    code = main(["plan", "--base-config", base, "--target-config", target, "--lr", "4e-3", "--json", *more])
    out, err = capsys.readouterr()
    return code, json.loads(out) if code == 0 else {}, err


SIX = ("qwen3-235b", "mixtral-8x22b", "gpt-oss-120b", "deepseek-v2", "glm-4.5", "deepseek-v3")


def test_every_pair_is_here() -> None:
    assert {folder.name for folder in PAIRS.iterdir() if folder.is_dir()} == STEPS.keys()


@pytest.mark.parametrize("pair", STEPS)
def test_each_pair_is_planned(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = STEPS[pair]
    code, document, err = planned(pair, capsys)
    assert code == 0
    assert document["regime"] == expected.regime
    growth = Growth(*(Shape.from_config(config_of(file)) for file in files(pair)))
    assert growth.kappa == pytest.approx(expected.kappa, rel=5e-3)
    assert growth.share == pytest.approx(expected.share, rel=5e-3)
    held = {line.removeprefix("mssp: warning: ") for line in err.splitlines() if "the theory holds it fixed" in line}
    assert held == {f"{change}: the theory holds it fixed" for change in CHANGES.get(pair, ())}


@pytest.mark.parametrize("pair", SIX)
def test_the_pair_is_printed_as_a_table(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By parameter name, or by role where base and target are built of different parts, which is said."""
    base, target = files(pair)
    words = ["plan", "--base-config", str(base), "--target-config", str(target), "--lr", "4e-3"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    kappa = re.search(r"κ = k n_e / n = ([\d.]+);", out)
    assert kappa is not None
    assert float(kappa[1]) == pytest.approx(STEPS[pair].kappa, abs=1e-3)
    assert ("there is no table by parameter name" in err) == ("\nparameter " not in out)


@pytest.mark.parametrize("pair", BY_HAND)
def test_the_numbers_are_those_worked_out_by_hand(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, document, _ = planned(pair, capsys, "--init-std", "0.02")
    expected = BY_HAND[pair]
    router, inner, outer = (document["roles"][role] for role in ("router", "expert_in", "expert_out"))
    assert (router["init_std"], outer["init_std"]) == pytest.approx(expected.std, rel=1e-5)
    assert (router["lr"], inner["lr"], outer["lr"]) == pytest.approx(expected.lr, rel=1e-5)
    assert (router["eps"], inner["eps"], outer["eps"]) == pytest.approx(expected.eps, rel=1e-5)
    depths = [sizes_of(json.loads(file.read_text(encoding="utf-8")))["depth"] for file in files(pair)]
    assert document["residual"] * depths[1] == 1  # the paper's 1/L, and over the base's
    assert depths[0] / depths[1] == pytest.approx(expected.residual)


@pytest.mark.parametrize("pair", STEPS)
def test_each_pair_is_planned_by_name_or_refused_with_the_reason(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, err = planned(pair, capsys, "--by-name")
    if pair in REFUSED:
        assert (code, REFUSED[pair] in err) == (2, True)
        return
    assert code == 0
    roles = {row[document["parameters"]["header"].index("role")] for row in document["parameters"]["rows"]}
    assert {"embedding", "hidden", "router", "expert_in", "expert_out", "norm", "final_norm"} <= roles


@pytest.mark.parametrize("pair", [pair for pair, step in STEPS.items() if step.published])
def test_the_models_have_as_many_parameters_as_published(pair: str) -> None:
    published = STEPS[pair].published
    assert published is not None
    counted = [sum(each.numel() for each in on_meta(config_of(file)).parameters()) / 1e9 for file in files(pair)]
    assert counted == pytest.approx(published, rel=0.015)


# -- small models that grow by the same factors ------------------------------------------------------------------------

Sizes = tuple[int, int, int, int]
_MLA = {"q_lora_rank": 16, "kv_lora_rank": 8, "n_group": 1, "topk_group": 1, "num_mtp_layers": 0}
# Of each pair a family, and the sizes N, N_e, M, K of base and target. They are the real ones divided by one number for
# each symbol, where that leaves whole heads of 16. Where base and target have parts that the other lacks, both have
# the target's: a base that is made to be grown has them.
SMALL: dict[str, tuple[str, Sizes, Sizes, dict[str, Any]]] = {
    "qwen3-235b": ("qwen3_moe", (32, 12, 16, 4), (64, 24, 16, 4), {}),
    "mixtral-8x22b": ("mixtral", (64, 28, 8, 2), (96, 32, 8, 2), {}),
    "gpt-oss-120b": ("gpt_oss", (32, 32, 4, 2), (32, 32, 16, 2), {}),
    "deepseek-v2": ("deepseek_v2", (32, 22, 8, 3), (80, 24, 20, 3), _MLA),
    "glm-4.5": ("glm4_moe", (64, 22, 16, 4), (80, 24, 20, 4), {"n_group": 1, "topk_group": 1}),
    "deepseek-v3": ("deepseek_v3", (80, 24, 10, 3), (112, 32, 16, 4), _MLA),
}
DEPTH = 2


@pytest.mark.parametrize("pair", SMALL)
def test_small_models_of_the_same_growth_train(pair: str) -> None:
    family, small, large, more = SMALL[pair]
    one_key_head = {} if "kv_lora_rank" in more else {"num_key_value_heads": 1}
    base, target = (tiny_config(family, Shape(*sizes, DEPTH), **more, **one_key_head) for sizes in (small, large))
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=1e-2, init_std=0.02)
    assert plan.regime == STEPS[pair].regime
    assert plan.growth is not None
    assert plan.growth.kappa == pytest.approx(STEPS[pair].kappa, rel=5e-3)
    model = model_of(target).train()
    with without_plan_warnings():
        mssp.hf.adapt(model, base=base)
        mssp.initialize(model, plan)
        optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
        mssp.verify(model, optimizer, plan)  # raises where a value is not the plan's
    batch = tokens(batch=4, length=16)
    losses = []
    for _ in range(20):
        loss = model(batch, labels=batch).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.75 * losses[0]
