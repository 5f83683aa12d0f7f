"""``verify(probe=)``: factors of the forward pass, depth and active experts, on models as people write them."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mssp
import nanogpt_moe
import own_transformer
from mssp import ParamInfo, Shape
from mssp.hf.factors import FACTOR_ATTRIBUTE, detach, scaled_output
from mssp.nn import GPT, GPTConfig, MLPConfig, MLPMoE
from tests.hf import tiny_models
from tests.measure import hand_written
from tests.measure.hand_written import (
    BASE,
    RIGHT,
    STYLES,
    TARGET,
    TOKENS,
    Factors,
    ListedBlock,
    StackedBlock,
    Transformer,
    built,
    plan_of,
)

RESIDUAL = r"the plan's residual factor is 0\.5 \(plan\.multiplier\('residual', relative=True\)\)"
AGGREGATION = r"the plan's aggregation factor is 0\.3333 \(plan\.multiplier\('aggregation', relative=True\)\)"


def verified(model: nn.Module, plan: mssp.Plan, claims: Any = None, **more: Any) -> None:
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan, claims))
    mssp.verify(model, optimizer, plan, claims, **more)


def probed(style: str, factors: Factors, plan: mssp.Plan | None = None) -> None:
    plan = plan or plan_of()
    base = built(style, plan.extend(BASE), Factors(relative=factors.relative))
    verified(built(style, plan, factors), plan, STYLES[style][1], probe=TOKENS, base=base)


relative = pytest.mark.parametrize("relative", [True, False], ids=["relative", "absolute"])


@relative
@pytest.mark.parametrize("style", STYLES)
def test_right_models_pass(style: str, relative: bool) -> None:
    probed(style, Factors(relative=relative))


# The first part that writes to the stream in each style, and what it is multiplied by with K x3 and L x2.
WRITERS = {"stacked": "blocks.0.attention.out", "listed": "blocks.0.moe", "bare": "blocks.0.down",
           "sandwich": "blocks.0.after.0"}  # fmt: skip
LAYERS = {"stacked": "blocks.0.moe", "listed": "blocks.0.moe", "bare": "blocks.0.w_out", "sandwich": "blocks.0.moe"}


@relative
@pytest.mark.parametrize(("power", "how"), [(0, "missing"), (2, "there twice")])
@pytest.mark.parametrize("style", STYLES)
def test_a_residual_factor_is_there_once(style: str, power: int, how: str, relative: bool) -> None:
    base, target = (1.0, 0.5**power) if relative else (0.5, 0.25**power)
    several = {"sandwich": 7}.get(style, 3)
    times = rf"times {target:.4g}, at the base times {base:.4g}, and {RESIDUAL}: it is {how}"
    with pytest.raises(
        ValueError, match=rf"{WRITERS[style]} and {several} more: its output reaches the stream {times}"
    ):
        probed(style, Factors(residual=power, relative=relative))


@relative
@pytest.mark.parametrize(("power", "how"), [(0, "missing"), (2, "there twice")])
@pytest.mark.parametrize("style", STYLES)
def test_an_aggregation_factor_is_there_once(style: str, power: int, how: str, relative: bool) -> None:
    over_base = (1 / 3) ** power if relative else (1 / 6) ** power * 2
    if style == "bare":  # no module returns the sum: both factors are measured as one
        says = rf"reaches the stream {over_base / 2:.4g} times .* the aggregation factor is {how}$"
    else:
        says = rf"counts {over_base:.4g} times as much in the sum as at the base, and {AGGREGATION}: it is {how}$"
    with pytest.raises(ValueError, match=rf"^{LAYERS[style]} and 3 more: what one of its experts puts out {says}"):
        probed(style, Factors(aggregation=power, relative=relative))


@relative
@pytest.mark.parametrize("style", STYLES)
def test_depth_and_active_experts_are_the_plans(style: str, relative: bool) -> None:
    with pytest.raises(ValueError, match=r"^3 blocks add to the residual stream, and the plan's target has 4$"):
        probed(style, Factors(depth=-1, relative=relative))
    says = "and 3 more: a token's output depends on 7 experts, and the plan says 6$"
    with pytest.raises(ValueError, match=rf"^{LAYERS[style]} {says}"):
        probed(style, Factors(active=1, relative=relative))


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"depends on 7 .*attention\.out .* is missing; .* aggregation .* there twice"):
        probed("stacked", Factors(active=1, residual=0, aggregation=2))


def test_one_wrong_block_among_right_ones_is_named() -> None:
    plan = plan_of()
    model = built("stacked", plan)
    model.blocks[2].moe.aggregation = 0.5  # type: ignore[union-attr]
    says = r"^blocks\.2\.moe: what .* counts 0\.5 times .*: it is 1\.5 times as large as planned$"
    with pytest.raises(ValueError, match=says):
        verified(model, plan, STYLES["stacked"][1], probe=TOKENS, base=built("stacked", plan.extend(BASE)))


def test_wrong_bases() -> None:
    plan, claims = plan_of(), STYLES["listed"][1]
    model = built("listed", plan)
    for factors, says in (
        (Factors(depth=1), "base: 3 blocks add to the residual stream, and the plan has 2 there"),
        (Factors(active=-1), r"base: blocks\.0\.moe and 1 more: a token's output depends on 1 experts, .* says 2"),
    ):
        with pytest.raises(ValueError, match=says):
            verified(model, plan, claims, probe=TOKENS, base=built("listed", plan.extend(BASE), factors))
    with pytest.raises(ValueError, match="base is not what the plan says: the plan is for another model"):
        verified(model, plan, claims, probe=TOKENS, base=model)


def test_a_tuned_aggregation_multiplier_is_in_model_and_base() -> None:
    plan = plan_of(aggregation_mult=1.5)
    probed("listed", RIGHT, plan)
    untuned = built("listed", plan_of().extend(BASE))
    with pytest.raises(ValueError, match=r"base lacks aggregation_mult, 1\.5: build it for plan\.extend\(plan\.base\)"):
        verified(built("listed", plan), plan, STYLES["listed"][1], probe=TOKENS, base=untuned)


def test_a_factor_may_stand_in_the_module_or_in_the_block() -> None:
    """What counts is the product of both on the way of an expert's output into the stream."""

    class Outside(ListedBlock):
        def __init__(self, shape: mssp.Shape, aggregation: float, residual: float) -> None:
            super().__init__(shape, 1.0, residual * aggregation)

    plan, claims = plan_of(), STYLES["listed"][1]
    base = Transformer(plan.extend(BASE), RIGHT, Outside)
    verified(Transformer(plan, RIGHT, Outside), plan, claims, probe=TOKENS, base=base)
    # With another branch beside the experts, the residual factor is measured there too.
    model = Transformer(plan, replace(RIGHT, aggregation=0), Outside)
    with pytest.raises(ValueError, match=r"puts out counts 1 times .* and .*is missing"):
        verified(model, plan, claims, probe=TOKENS, base=base)


@pytest.mark.parametrize("block", [StackedBlock, ListedBlock])
def test_gates_that_are_shares_of_one_take_no_aggregation_factor(block: Callable[..., nn.Module]) -> None:
    plan, claims = plan_of(), STYLES["stacked" if block is StackedBlock else "listed"][1]

    def softmax(shape: mssp.Shape, aggregation: float, residual: float) -> nn.Module:
        return block(shape, aggregation, residual, softmax=True)

    base = Transformer(plan.extend(BASE), RIGHT, softmax)
    verified(Transformer(plan, Factors(aggregation=0), softmax), plan, claims, probe=TOKENS, base=base)
    with pytest.raises(
        ValueError, match=r"gates are shares of one, .* experts is 0\.3333 times as large as at the base"
    ):
        verified(Transformer(plan, RIGHT, softmax), plan, claims, probe=TOKENS, base=base)


def over_all(logits: Tensor, active: int, softmax: bool) -> tuple[Tensor, Tensor]:
    """A softmax over all experts, of which the chosen ones have the largest shares."""
    gates, chosen = logits.softmax(-1).topk(active, dim=-1)
    return gates, chosen


def in_groups(logits: Tensor, active: int, softmax: bool) -> tuple[Tensor, Tensor]:
    """The best two groups of four first, and the best experts of these."""
    groups = logits.unflatten(-1, (4, -1))
    best = groups.amax(-1).topk(2, dim=-1).indices
    allowed = torch.zeros_like(groups[..., 0]).scatter(-1, best, 1.0).repeat_interleave(groups.shape[-1], -1)
    chosen = logits.masked_fill(allowed == 0, -1e9).topk(active, dim=-1).indices
    return logits.sigmoid().gather(-1, chosen), chosen


@pytest.mark.parametrize("routed", [over_all, in_groups])
def test_other_ways_to_route(routed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_written, "routed", routed)
    right, wrong = (Factors(aggregation=power) for power in ((0, 1) if routed is over_all else (1, 0)))
    probed("listed", right)
    with pytest.raises(
        ValueError, match="0\\.3333 times as large" if routed is over_all else f"{AGGREGATION}: it is missing"
    ):
        probed("listed", wrong)


def test_more_experts_than_neurons_and_a_base_with_one_active_expert() -> None:
    base = Shape(width=8, expert_width=8, experts=20, active=1, depth=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mssp.PlanWarning)  # of an active share that grows
        plan = plan_of(Shape(width=16, expert_width=16, experts=40, active=4, depth=4), base)
    claims, small = STYLES["listed"][1], built("listed", plan.extend(base))
    verified(built("listed", plan), plan, claims, probe=TOKENS, base=small)
    with pytest.raises(ValueError, match=r"counts 1 times .* aggregation factor is 0\.25 .*: it is missing$"):
        verified(built("listed", plan, Factors(aggregation=0)), plan, claims, probe=TOKENS, base=small)


class Looped(Transformer):
    """One block, as often as there should be blocks."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for _ in self.blocks:
            x = self.blocks[0](x)
        logits: Tensor = self.readout(self.final_norm(x))
        return logits


def test_a_block_that_is_used_several_times_is_not_measured_in_silence() -> None:
    plan, (block, claims) = plan_of(), STYLES["stacked"]
    models = [Looped(plan, RIGHT, block), Looped(plan.extend(BASE), RIGHT, block)]
    for model in models:
        for number in range(1, len(model.blocks)):
            model.blocks[number] = nn.Identity()
    with pytest.warns(mssp.PlanWarning, match=r"blocks\.0\.moe: its router meets 4 inputs .* where one was expected"):
        verified(models[0], plan, claims, probe=TOKENS, base=models[1])


def test_compiled_models_are_measured_uncompiled() -> None:
    plan, claims = plan_of(), STYLES["stacked"][1]
    compiled: Any = torch.compile(built("stacked", plan, Factors(residual=0)), backend="eager")
    with pytest.raises(ValueError, match=f"{RESIDUAL}: it is missing"):
        verified(compiled, plan, claims, probe=TOKENS, base=built("stacked", plan.extend(BASE)))


# -- examples, and models of ours --------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_example_of_ones_own_model(noise: float) -> None:
    plan, tokens = plan_of(), own_transformer.batch(0, size=2)[0]
    base = own_transformer.Transformer(plan.extend(BASE), noise)  # whose experts are not even initialized
    verified(own_transformer.Transformer(plan, noise), plan, own_transformer.CLAIMS, probe=tokens, base=base)


def test_the_example_of_a_loop() -> None:
    plan = plan_of()
    claims: dict[str, ParamInfo | str] = {
        "transformer.w?e.weight": ParamInfo("embedding", layout="vocab out"),
        "transformer.h.*.ln_?.weight": "norm",
        "transformer.h.*.ln_?.bias": "bias",
        "transformer.h.*.attn.c_attn.weight": ParamInfo("hidden", layout="(3 out) in"),
        "transformer.h.*.attn.c_proj.weight": ParamInfo("hidden", layout="out in"),
        "transformer.h.*.mlp.router.weight": ParamInfo("router", layout="out in"),
        "transformer.h.*.mlp.experts.c_fc": ParamInfo("expert_in", layout="in out", expert_axis=0),
        "transformer.h.*.mlp.experts.c_proj": ParamInfo("expert_out", layout="in out", expert_axis=0),
        "transformer.ln_f.weight": "final_norm",
        "lm_head.weight": ParamInfo("readout", layout="out in"),
    }

    def build(plan: mssp.Plan) -> nn.Module:
        shape = plan.target
        sizes = (shape.width, shape.expert_width, shape.experts, shape.active, shape.depth)
        return nanogpt_moe.GPT(*sizes, *RIGHT.of(plan))

    verified(build(plan), plan, claims, probe=TOKENS, base=build(plan.extend(BASE)))


def gpt(**changes: Any) -> GPT:
    sizes = {"width": 64, "expert_width": 16, "experts": 12, "active": 6, "depth": 4, "head": 8}
    return GPT(GPTConfig(**{**sizes, "vocabulary": 16, "context": 8, "moe_every": 2, **changes}))


@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
@pytest.mark.parametrize("tied", [False, True])
def test_our_transformer_needs_no_base(gate: str, tied: bool) -> None:
    model, plan = gpt(gate=gate, tied=tied, dispatch="dense"), plan_of(aggregation_mult=1.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mssp.PlanWarning)  # of tied readouts and of gates that sum to one
        mssp.initialize(model, plan)
    verified(model, plan, probe=TOKENS)


@pytest.mark.parametrize("dispatch", ["loop", "grouped"])
def test_every_way_to_compute_experts(dispatch: str) -> None:
    model, plan = gpt(dispatch=dispatch, depth=2), plan_of(replace(TARGET, depth=2))
    mssp.initialize(model, plan)
    before, random = [*traces(model)], torch.random.get_rng_state()
    verified(model, plan, probe=TOKENS)
    assert all(
        same(*each) for was, now in zip(before, traces(model), strict=True) for each in zip(was, now, strict=True)
    )
    assert torch.equal(torch.random.get_rng_state(), random)


def test_our_transformer_with_a_factor_that_acts_twice() -> None:
    model, plan = gpt(), plan_of()
    mssp.initialize(model, plan)
    model.blocks[3].attention.register_forward_hook(lambda module, args, output: output / 4)  # type: ignore[union-attr]
    named = r"0\.25 \(plan\.multiplier\('residual'\)\): it is there twice"
    says = rf"^blocks\.3\.attention\.out: .* times 0\.0625, and .* {named}$"
    with pytest.raises(ValueError, match=says):
        verified(model, plan, probe=TOKENS)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
def test_our_mlp_needs_no_base(gate: str, residual: bool, blocks: int) -> None:
    sizes = {"inputs": 12, "outputs": 3, "width": 32, "expert_width": 8, "experts": 6, "active": 3}
    model = MLPMoE(MLPConfig(**sizes, gate=gate, residual=residual, blocks=blocks))  # type: ignore[arg-type]
    plan = mssp.plan(model.config.shape, regime="II", lr=0.1)
    mssp.initialize(model, plan)
    verified(model, plan, probe=torch.linspace(-1, 1, 60).view(5, 12))


# -- Hugging Face ------------------------------------------------------------------------------------------------------

HF_PROBE = {"input_ids": tiny_models.tokens()}


def adapted(family: str) -> tuple[nn.Module, mssp.Plan]:
    model = tiny_models.model_of(tiny_models.config_of(family, tiny_models.TARGET))
    plan = tiny_models.plan_of(*tiny_models.shapes_of(family))
    mssp.hf.adapt(model, base=tiny_models.config_of(family, tiny_models.BASE))
    return tiny_models.initialized(model, plan), plan


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_every_family_of_hugging_face(family: str) -> None:
    model, plan = adapted(family)
    before = copy.deepcopy(model.state_dict())
    verified(model, plan, probe=HF_PROBE)
    assert all(torch.equal(held, before[name]) for name, held in model.state_dict().items())
    attention = next(module for module in model.modules() if vars(module).get(FACTOR_ATTRIBUTE) == 2 / 3)
    attention.register_forward_hook(scaled_output)
    with pytest.raises(
        ValueError, match=r"multiplied by 0\.4444, and .* residual factor is 0\.6667: it is there twice"
    ):
        verified(model, plan, probe=HF_PROBE)
    detach(attention)
    with pytest.raises(ValueError, match=r"multiplied by 1, and the plan's residual factor is 0\.6667: it is missing"):
        verified(model, plan, probe=HF_PROBE)


def test_factors_of_experts_and_sizes_at_hugging_face() -> None:
    model, plan = adapted("dots1")
    verified(model, plan, probe=HF_PROBE)
    stack = next(module for name, module in model.named_modules() if name.endswith("layers.1.mlp.experts"))
    detach(stack)
    says = r"model\.layers\.1\.mlp\.experts: .* multiplied by 1, and .* aggregation factor is 0\.5: it is missing"
    with pytest.raises(ValueError, match=says):
        verified(model, plan, probe=HF_PROBE)
    model, plan = adapted("mixtral")
    model.model.layers = model.model.layers[:2]  # type: ignore[union-attr, index]
    with pytest.raises(ValueError, match=r"2 blocks ran, and the plan's target has 3"):
        verified(model, plan, probe=HF_PROBE)
    model, plan = adapted("mixtral")
    model.model.layers[1].mlp.gate.top_k = 3  # type: ignore[union-attr, index]
    with pytest.raises(ValueError, match=r"^model\.layers\.1\.mlp\.experts: a token goes to 3 experts, .* says 4$"):
        verified(model, plan, probe=HF_PROBE)
    model, plan = adapted("mixtral")
    with pytest.warns(mssp.PlanWarning, match="base is not needed"):
        verified(model, plan, probe=HF_PROBE, base=nn.Identity())


# -- the model stays as it was -----------------------------------------------------------------------------------------


class Counting(nn.Module):
    """A transformer that counts its calls in a buffer, draws random numbers, and may fail."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.fails = inner, False
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        if self.fails and self.calls > 3:
            raise RuntimeError("out of order\nand more")
        logits: Tensor = self.inner(tokens) + torch.randn(())
        return logits


def traces(model: nn.Module) -> Iterator[Any]:
    for path, module in model.named_modules():
        hooks = [len(getattr(module, name)) for name in ("_forward_hooks", "_forward_pre_hooks")]
        yield path, module.training, hooks, sorted(vars(module))
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield name, id(tensor), tensor.detach().clone(), None if tensor.grad is None else tensor.grad.clone()


def same(first: Any, second: Any) -> bool:
    return torch.equal(first, second) if isinstance(first, Tensor) else bool(first == second)


@pytest.mark.parametrize("fails", [False, True])
def test_model_and_base_stay_as_they_were(fails: bool) -> None:
    plan = plan_of()
    model, base = Counting(built("stacked", plan)), Counting(built("stacked", plan.extend(BASE)))
    claims = {f"inner.{name}": info for name, info in STYLES["stacked"][1].items()}
    model(TOKENS).sum().backward()
    model.inner.blocks[1].eval()  # type: ignore[union-attr, index]
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan, claims))
    model.fails = fails
    before, random = [*traces(model), *traces(base)], torch.random.get_rng_state()
    if fails:
        with pytest.raises(ValueError, match=r"^the model does not run on the probe: out of order$"):
            mssp.verify(model, optimizer, plan, claims, probe=TOKENS, base=base)
    else:
        mssp.verify(model, optimizer, plan, claims, probe=(TOKENS,), base=base)
    after = [*traces(model), *traces(base)]
    assert all(
        same(one, other) for was, now in zip(before, after, strict=True) for one, other in zip(was, now, strict=True)
    )
    assert torch.equal(torch.random.get_rng_state(), random)


def test_bfloat16_and_keyword_arguments() -> None:
    plan, claims = plan_of(), STYLES["listed"][1]
    model = built("listed", plan).bfloat16()
    base = built("listed", plan.extend(BASE)).bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mssp.PlanWarning)
        verified(model, plan, claims, probe={"tokens": TOKENS}, base=base)
    assert model.readout.weight.dtype == torch.bfloat16


# -- what a probe cannot do --------------------------------------------------------------------------------------------


def test_without_a_probe_nothing_is_measured() -> None:
    plan = plan_of()
    verified(built("listed", plan, Factors(residual=0)), plan, STYLES["listed"][1])
    with pytest.raises(ValueError, match=r"^base is what a probe compares with: pass a batch as probe too$"):
        verified(built("listed", plan), plan, STYLES["listed"][1], base=built("listed", plan.extend(BASE)))


def test_what_is_needed_is_named() -> None:
    plan, claims = plan_of(), STYLES["listed"][1]
    model = built("listed", plan)
    with pytest.raises(ValueError, match=r"pass base, the same code built for plan\.extend\(plan\.base\)"):
        verified(model, plan, claims, probe=TOKENS)
    alone = mssp.plan(TARGET, regime="III", lr=1e-3)
    with pytest.raises(ValueError, match=r"the plan has none: make it as plan\(target, base\)"):
        verified(model, alone, claims, probe=TOKENS, base=model)
    with pytest.raises(ValueError, match=r"^base must be a torch\.nn\.Module, got 'base'$"):
        verified(model, plan, claims, probe=TOKENS, base="base")
    unplaced = {**claims, "final_norm.weight": "norm", "readout.weight": ParamInfo("hidden", layout="out in")}
    with pytest.raises(ValueError, match="needs the end of the residual stream: no final_norm and no readout"):
        verified(model, plan, unplaced, probe=TOKENS, base=built("listed", plan.extend(BASE)))


class AfterNorm(ListedBlock):
    """A norm of the stream itself after every branch, as the first Transformers had it."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x + self.residual * self.moe(x))
        return y


def test_what_could_not_be_measured_is_warned_of() -> None:
    plan, claims = plan_of(), STYLES["listed"][1]
    model, base = Transformer(plan, RIGHT, AfterNorm), Transformer(plan.extend(BASE), RIGHT, AfterNorm)
    says = "blocks.0.moe and 3 more: its output does not arrive in the residual stream as it is; base: blocks.0.moe and"
    with pytest.warns(mssp.PlanWarning, match=re.escape(says)):
        verified(model, plan, claims, probe=TOKENS, base=base)
    wrong = Transformer(plan, Factors(aggregation=0), AfterNorm)  # the sum over experts is measured in its module
    with pytest.raises(ValueError, match="it is missing"):
        verified(wrong, plan, claims, probe=TOKENS, base=base)
