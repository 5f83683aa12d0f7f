"""The check along the growths of released pairs: small models of the same families, three sizes of the same growth."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from torch import nn

import mssp
import mssp.nn
from mssp import Shape
from mssp.coordcheck.result import Check
from mssp.planning.recipe import without_plan_warnings
from tests.coordcheck.hugging_face_models import windows
from tests.hf.test_pairs import DEPTH, SMALL
from tests.hf.tiny_models import HEAD, config_of, model_of

STEPS, LR = 3, 2e-3
LARGEST = 4.0  # by how much the size that grows most grows in all
SCALE = 2  # experts of a few units are no wide ones
pytestmark = [pytest.mark.slow]


def shapes_of(pair: str) -> Iterator[Shape]:
    """Three shapes along a pair's growth: the factors to a common power, rounded to heads and to whole experts."""
    _, small, large, _ = SMALL[pair]
    growths = [math.log(after / before) for before, after in zip(small, large, strict=True)]
    for share in (0.0, 0.5, 1.0):
        power = share * math.log(LARGEST) / max(growths)
        width, expert_width, experts, active = (
            size * math.exp(power * growth) for size, growth in zip(small, growths, strict=True)
        )
        heads = round(SCALE * width / (2 * HEAD))
        yield Shape(2 * HEAD * heads, 4 * round(SCALE * expert_width / 4), 2 * round(experts / 2), round(active), DEPTH)


def checked(pair: str, **how: object) -> Check:
    family, _, _, more = SMALL[pair]
    shapes = list(shapes_of(pair))
    # Softmax gates that are not renormalised sum to K/M, which the family's own factor makes up for.
    scales = {shape: shape.experts / shape.active * shapes[0].active / shapes[0].experts for shape in shapes}
    own = {shape: {"routed_scaling_factor": scales[shape]} if family == "deepseek_v2" else {} for shape in shapes}
    configs = {shape: config_of(family, shape, **more, **own[shape]) for shape in shapes}
    base = configs[shapes[0]]

    def build(shape: Shape) -> nn.Module:
        model = model_of(configs[shape])
        mssp.hf.adapt(model, base=base)
        return model

    batches = [(window[:, :-1], window[:, 1:]) for window in windows(STEPS, seed=0, batch=4)]
    with without_plan_warnings():
        plan = mssp.hf.plan(configs[shapes[-1]], base, lr=LR)
        return mssp.check(build, shapes, batches, plan, seeds=2, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("pair", SMALL)
def test_the_growth_of_a_released_pair_passes(pair: str) -> None:
    check = checked(pair)
    off = {str(quantity.name): quantity.judged for quantity in check.off}
    assert not off, str(check)
    for name in ("weights/expert_out", "weights/router", "eps/expert_in", "aggregate/init"):
        assert check.quantities[name].verdict == "ok", name


def test_softmax_gates_of_fewer_experts_are_warned_of() -> None:
    small, large = Shape(64, 32, 8, 2, 2), Shape(64, 32, 32, 2, 2)
    with without_plan_warnings():
        plan = mssp.plan(large, small, lr=LR)
    layer = mssp.nn.MoE(64, 32, 32, 2, gate="softmax")
    with pytest.warns(mssp.PlanWarning, match=r"here 0.25 times .* multiply the sum over experts by 4 \(in configs"):
        mssp.initialize(layer, plan)
