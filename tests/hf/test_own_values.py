"""Models from the meta device: what no plan gives values to is filled by the model's own init, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import OlmoeForCausalLM

import mssp
from mssp.hf.meta import on_meta
from mssp.hf.own_values import changed_buffers
from mssp.planning.recipe import without_plan_warnings
from tests.hf.test_refusals import refused
from tests.hf.tiny_models import BASE, TARGET, config_of, initialized, logits, model_of, plan_of

GARBAGE = 7.0


def adapted(model: Any) -> Any:
    mssp.hf.adapt(model, base=config_of(model.config.model_type, BASE))
    return model


def with_memory(model: nn.Module) -> nn.Module:
    """As ``to_empty`` leaves a model from the meta device: anything may be in its memory."""
    model.to_empty(device="cpu").eval()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(GARBAGE)
    model.tie_weights()  # type: ignore[operator]
    return model


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


# A plain one, a frozen bias of the router, one that is a buffer, numbers drawn by the model, a readout that is tied.
@pytest.mark.parametrize("family", ["olmoe", "afmoe", "minimax_m2", "qwen3_next", "ernie4_5_moe"])
def test_a_model_from_the_meta_device_is_filled_whole(family: str) -> None:
    plan, config = plan_of(readout="mup"), config_of(family, TARGET)
    usual = tensors(initialized(adapted(model_of(config)), plan, seed=3))
    before = with_memory(adapted(on_meta(config)))
    after = adapted(with_memory(on_meta(config)))
    state = torch.get_rng_state()
    for model in (before, after):
        assert changed_buffers(model)
        initialized(model, plan, seed=3)
        assert tensors(model).keys() == usual.keys()
        for name, tensor in tensors(model).items():
            if not name.endswith("A_log"):  # drawn by the model
                assert torch.equal(tensor, usual[name]), name
        mssp.verify(model, torch.optim.AdamW(mssp.param_groups(model, plan)), plan)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(logits(before), logits(after))
    decays = [tensor for name, tensor in tensors(before).items() if name.endswith("A_log")]
    assert len(decays) == (2 if family == "qwen3_next" else 0)
    for tensor in decays:
        assert (
            -7 < tensor.min() < tensor.max() < torch.tensor(16.0).log()
        )  # uniform between 0 and 16, and its logarithm


def test_verify_notices_buffers_that_nobody_filled() -> None:
    plan = plan_of(readout="mup")
    weights = initialized(adapted(model_of(config_of("olmoe", TARGET))), plan).state_dict()
    model = with_memory(adapted(on_meta(config_of("olmoe", TARGET))))
    model.load_state_dict(weights)
    mssp.hf.adapt(model, base=config_of("olmoe", BASE), plan=plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    with pytest.raises(ValueError, match=r"rotary_emb\.inv_freq does not hold what the model itself computes"):
        mssp.verify(model, optimizer, plan)
    initialized(model, plan)
    mssp.verify(model, optimizer, plan)


def test_a_healthy_model_keeps_what_it_holds() -> None:
    """A bias that came with a checkpoint is no garbage, and neither are frequencies in half precision."""
    model: Any = adapted(model_of(config_of("afmoe", TARGET)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("expert_bias"):
                parameter.fill_(0.25)
    model.model.rotary_emb.to(torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in tensors(model).items()}
    initialized(model, plan_of())
    kept = [name for name, tensor in tensors(model).items() if name.endswith("expert_bias") or "inv_freq" in name]
    assert len(kept) == 4
    assert all(torch.equal(before[name], tensors(model)[name]) for name in kept)


class OwnRotary(nn.Module):
    """Frequencies under a name of their own, which are computed anew for long texts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pace", torch.arange(1.0, 5.0), persistent=False)
        self.register_buffer("first_pace", torch.arange(1.0, 5.0), persistent=False)


class OwnForCausalLM(OlmoeForCausalLM):  # type: ignore[misc]
    """A family of another name, with a buffer and a frozen parameter that its own init fills, or does not."""

    fills = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.rotary = OwnRotary()
        self.shift = nn.Identity()
        self.shift.register_parameter("offset", nn.Parameter(torch.ones(4), requires_grad=False))
        self.shift.register_buffer("counts", torch.arange(3))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, OwnRotary):
            module.pace.copy_(torch.arange(1.0, 5.0))  # type: ignore[operator]
            module.first_pace.copy_(torch.arange(1.0, 5.0))  # type: ignore[operator]
        if "offset" in module._parameters and self.fills:
            module.offset.copy_(torch.ones(4))  # type: ignore[operator]


class UnfilledForCausalLM(OwnForCausalLM):
    fills = False


def test_other_buffers_of_other_families_are_filled_too() -> None:
    like = OwnForCausalLM(config_of("olmoe", TARGET))
    model = with_memory(adapted(on_meta(config_of("olmoe", TARGET), like=like)))
    assert set(changed_buffers(model) or []) >= {"rotary.pace", "rotary.first_pace"}
    initialized(model, plan_of())
    assert torch.equal(model.get_buffer("rotary.pace"), torch.arange(1.0, 5.0))
    assert torch.equal(model.get_buffer("shift.counts"), torch.arange(3))
    assert torch.equal(model.get_parameter("shift.offset"), torch.ones(4))
    model.get_buffer("rotary.pace").fill_(3.0)  # by the model itself
    assert changed_buffers(model) == []


def test_what_cannot_be_filled_is_named() -> None:
    plan = plan_of()
    like = UnfilledForCausalLM(config_of("olmoe", TARGET))
    own = with_memory(adapted(on_meta(config_of("olmoe", TARGET), like=like)))
    with refused(own, "shift.offset has memory and no values, as to_empty leaves it, and the model's own"):
        initialized(own, plan)
    model = adapted(with_memory(on_meta(config_of("olmoe", TARGET))))
    model.register_buffer("added", torch.full((3,), GARBAGE))
    model.register_parameter("frozen", nn.Parameter(torch.ones(2), requires_grad=False))
    with refused(model, "added and 1 more has memory and no values"):
        initialized(model, plan)


@pytest.mark.parametrize("family", ["granitemoehybrid", "qwen3_next"])
def test_starts_that_count_heads_need_the_base(family: str) -> None:
    """Mamba 2's decay rates are log 1, log 2, ...; those of Qwen's delta rule are drawn head by head."""
    target, base = config_of(family, TARGET), config_of(family, BASE)
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=1e-3, regime="III")
        deeper = mssp.hf.plan(target, config_of(family, replace(TARGET, depth=2)), lr=1e-3)
    model = model_of(target)
    mssp.hf.adapt(model)
    initialized(model, deeper)  # of which the base has as many heads
    mssp.hf.release(model)
    mssp.hf.adapt(model)
    if family == "qwen3_next":
        initialized(model, plan)
        return
    message = (
        "model.layers.*.mamba.A_log starts as the base's, spread over its own entries, of which the base may have "
        "fewer, and a plan does not say how many: give the base's config, mssp.hf.adapt(model, base)"
    )
    with refused(model, message):
        mssp.initialize(model, plan)
