"""Layouts on several processes, and the same step under them: gloo, CPU, two and four processes in one start.

Everything here is in float64, where layouts differ by rounding of 1e-15: what is the same is the same, and an accident
is one. In float32 one case says that rounding alone is no accident.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

import mssp
from mssp.apply.groups import optimizer_for
from mssp.nn import GPT, GPTConfig
from mssp.train import SameStep, accumulating, clip_, same_step, spread, total_norm
from tests.planted.layout_accidents import ACCIDENTS, CLIP, DDP, MICRO_BATCHES, auxiliary_losses
from tests.planted.layout_accidents import right_with_ddp as ddp_by_hand
from tests.planted.layout_accidents import right_with_experts as experts_by_hand
from tests.planted.layout_accidents import sharded_experts_and_fsdp as experts_and_fsdp
from tests.ranks import check_on_ranks

RANKS = 4
CONFIG = GPTConfig(
    width=32, expert_width=16, experts=4, active=2, depth=2, vocabulary=64, context=16, head=16, dispatch="dense"
)
PAGE = Path(__file__).parents[2] / "docs" / "layouts.md"
LAYOUTS = ("ddp", "fsdp", "ep")


def plan_of(config: GPTConfig = CONFIG) -> mssp.Plan:
    return mssp.plan(config.shape, regime="III", lr=1e-2, weight_decay=0.1)


def build() -> nn.Module:
    return GPT(CONFIG).double()


def batch_of(rows: int = 9) -> tuple[Tensor, Tensor]:
    """Rows that no number of processes divides, the last of them with fewer predicted tokens."""
    tokens = torch.randint(64, (rows, 17), generator=torch.Generator().manual_seed(0))
    targets = tokens[:, 1:].clone()
    targets[rows - 4 :, 4:] = -100
    return tokens[:, :-1], targets


def whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def assert_passed(result: SameStep) -> None:
    assert result.passed, result
    assert result.causes == ()
    values = [value for step in result.roles.values() for value in step.gradient.values]
    assert max(abs(value - 1) for value in values) < 1e-9


# -- what layouts are --------------------------------------------------------------------------------------------------


def check_weights_and_groups() -> None:
    """Drawn before or after a layout, the weights are those of one device; ties stay, and groups are the same."""
    chosen = plan_of()
    reference = build()
    mssp.initialize(reference, chosen)
    expected = [
        {key: value for key, value in group.items() if key != "params"} | {"count": len(group["params"])}
        for group in optimizer_for(reference, chosen).param_groups
    ]
    for layout in LAYOUTS:
        for before in (True, False):
            model = build()
            if before:
                mssp.initialize(model, chosen)
            model = spread(model, layout)
            if not before:
                mssp.initialize(model, chosen)
            for (name, tensor), wanted in zip(model.named_parameters(), reference.parameters(), strict=True):
                assert torch.equal(whole(tensor), wanted.detach()), (layout, before, name)
                if ".experts." in name:  # in Regime III all experts start alike
                    first, *others = whole(tensor)
                    assert all(torch.equal(first, other) for other in others)
            optimizer = optimizer_for(model, chosen)
            mssp.verify(model, optimizer, chosen)
            groups = [
                {key: value for key, value in group.items() if key != "params"} | {"count": len(group["params"])}
                for group in optimizer.param_groups
            ]
            assert groups == expected


def check_named_layouts() -> None:
    """Accumulation 1 against 2 and 4, an uneven last part, and auxiliary losses."""
    for layout in LAYOUTS:
        for accumulation in (1, 2) if dist.get_world_size() == 2 else (2,):
            plan, batch = plan_of(), batch_of()
            assert_passed(
                same_step(
                    build, batch, plan, layout=layout, accumulation=accumulation, clip=CLIP, loss=auxiliary_losses
                )
            )
    assert_passed(same_step(build, batch_of(17), plan_of(), layout="ddp", accumulation=4, clip=CLIP))


def check_more_models() -> None:
    """Float32, plain SGD, a tied readout, biases of the router, soft routing, all in one block of each."""
    tied = GPTConfig(
        width=32, expert_width=8, experts=4, depth=1, vocabulary=64, context=16, head=16, tied=True, gated=True,
        activation="silu",
    )  # fmt: skip
    for layout in ("fsdp", "ep"):
        result = same_step(
            lambda: GPT(tied), batch_of(), mssp.plan(tied.shape, regime="III", lr=0.1, optimizer="sgd"), layout=layout
        )
        assert result.passed, result
        assert result.norm.verdict == "same"


def check_norms() -> None:
    """3² + 4² + 12² + 84² + 132² = 157²: plain, replicated, sharded along one axis and two, and without a gradient."""
    flat, square = init_device_mesh("cpu", (RANKS,)), init_device_mesh("cpu", (2, 2))
    cases: list[tuple[float, tuple[Placement, ...] | None]] = [
        (3.0, None),
        (4.0, (Replicate(),)),
        (12.0, (Shard(0),)),
        (84.0, (Shard(0), Shard(1))),
        (132.0, (Replicate(), Shard(0))),
    ]
    parameters = []
    for size, placements in cases:
        tensor = torch.full((3, 3), size / 3)  # of the norm `size`
        if placements is None:
            parameter, gradient = nn.Parameter(torch.zeros(3, 3)), tensor
        else:
            mesh = flat if len(placements) == 1 else square
            gradient = distribute_tensor(tensor, mesh, placements)
            parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient
        parameters.append(parameter)
    # One that only the first process has a gradient of, which is zero: nobody waits for the others.
    lonely = nn.Parameter(distribute_tensor(torch.zeros(4), flat, [Shard(0)]))
    if dist.get_rank() == 0:
        lonely.grad = torch.zeros_like(lonely)
    parameters.append(lonely)
    assert abs(float(total_norm(parameters)) - 157) < 1e-4
    assert abs(float(clip_(parameters, 15.7)) - 157) < 1e-4
    assert abs(float(whole(parameters[2].grad)[0, 0]) - 0.4) < 1e-6
    assert abs(float(total_norm(parameters)) - 15.7) < 1e-4


def check_accumulating() -> None:
    """Gradients of two micro-batches, sent once or twice, are the same."""
    tokens, targets = batch_of(8)
    for layout in LAYOUTS:
        found = []
        for at_the_last in (True, False):
            model = build()
            mssp.initialize(model, mssp.plan(CONFIG.shape, regime="III", lr=1e-2, readout="mup"))
            model = spread(model, layout)
            for number in range(2):
                with accumulating(model, more=at_the_last and number == 0):
                    part = slice(2 * dist.get_rank() + number, 2 * dist.get_rank() + number + 1)
                    model(tokens[part], targets[part]).loss.backward()
            found.append([whole(parameter.grad) for parameter in model.parameters()])
        for first, second in zip(*found, strict=True):
            assert torch.allclose(first, second, rtol=1e-12, atol=1e-14)


def check_refusals() -> None:
    with pytest.raises(ValueError, match=r"^layout one is for a single process, and there are 4: use ddp$"):
        spread(build(), "one")
    six = GPTConfig(width=32, expert_width=16, experts=6, depth=1, vocabulary=64, context=16, head=16)
    with pytest.raises(ValueError, match=r"^layout ep needs a number of experts that 4 processes divide, got 6$"):
        spread(GPT(six), "ep")
    with pytest.raises(ValueError, match=r"^a Linear has no experts that layout ep can divide: use fsdp$"):
        spread(nn.Linear(2, 2), "ep")
    with pytest.raises(ValueError, match=r"^a batch of 3 rows has none for some of 4 × 1 parts: take more rows$"):
        same_step(build, batch_of(3), plan_of(), layout="ddp")


# -- accidents ---------------------------------------------------------------------------------------------------------


def check_steps_by_hand() -> None:
    """Right steps as people write them: DDP that averages, and FSDP2 that averages beside experts of one's own."""
    for step, way in ((ddp_by_hand, DDP), (experts_by_hand, experts_and_fsdp)):
        assert_passed(same_step(build, batch_of(), plan_of(), layout=step, spread_by=way, clip=CLIP))


def check_accidents(names: list[str]) -> None:
    for name in names:
        accident = ACCIDENTS[name]
        has_parts = name == "auxiliary loss"
        result = same_step(
            build,
            batch_of(),
            plan_of(),
            layout=accident.step,
            spread_by=accident.spread,
            clip=CLIP,
            loss=auxiliary_losses if has_parts else None,
            parts=dist.get_world_size() * MICRO_BATCHES if has_parts else None,
        )
        assert not result.passed, name
        assert accident.cause in result.causes[0], (name, result.causes)
        off = [role for role, step in result.roles.items() if step.gradient.verdict == "off"]
        assert " ".join(off) == accident.off, name


def check_all_accidents() -> None:
    check_accidents(list(ACCIDENTS))


def check_accidents_of_four() -> None:
    check_accidents(["experts doubled", "norm with own experts", "mean of means"])


def check_factors() -> None:
    """The factor and the words of the accident that the field knows best."""
    accident = ACCIDENTS["experts doubled"]
    result = same_step(build, batch_of(), plan_of(), layout=accident.step, spread_by=accident.spread, clip=CLIP)
    assert result.causes == (
        "the gradient of expert_in and expert_out is 2.00 times the one-device one, beside the others: experts' "
        "gradients are summed over processes that the others are averaged over, or the reverse",
    )
    assert [round(value, 9) for value in result.roles["expert_in"].gradient.values] == [2.0, 2.0]
    assert result.roles["expert_in"].update.verdict == "follows"  # Adam hides the factor
    assert result.norm.verdict == "follows"


def check_the_page() -> None:
    """The script that the page on layouts shows."""
    _, script = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(script, {})


@pytest.mark.slow
def test_layouts_on_two_and_four_processes(tmp_path: Path) -> None:
    check_on_ranks(
        RANKS,
        tmp_path,
        check_norms,
        check_accumulating,
        check_refusals,
        check_named_layouts,
        check_accidents_of_four,
        on_two=(
            check_weights_and_groups,
            check_named_layouts,
            check_more_models,
            check_steps_by_hand,
            check_all_accidents,
            check_factors,
            check_the_page,
        ),
    )
