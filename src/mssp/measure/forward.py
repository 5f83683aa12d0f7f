"""``verify``: whether a model and its optimizer have the values of a plan, and its forward pass the plan's factors.

Two factors belong into the forward pass: one on the sum over experts, and one on what blocks add to the residual
stream. No parameter shows them, nor the depth and the number of active experts. Here they are measured on a probe, and
what counts is how the model answers over how its base does: models whose factors are 1 at the base and models that have
the paper's K^-1 and L^-1 are then one case.

Models that bring their factors along need no base. Those of ``mssp.nn`` are compared with a small one of their own
kind, and those that ``mssp.hf.adapt`` prepared are asked what their hooks do.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mssp._constraints import a_module, a_plan, an_optimizer, claims, optional, takes
from mssp.apply import verification
from mssp.apply.description import Claims, described_parameters, planned_multipliers, unwrapped
from mssp.hf import experts
from mssp.hf.factors import FACTOR_ATTRIBUTE, PlannedFactor, blocks_of, scaled_output
from mssp.measure.modules import output_of
from mssp.measure.recording import main_output, undisturbed, with_first
from mssp.measure.responses import MoEResponse, Responses, Run, family, responses
from mssp.nn.gpt import GPT
from mssp.nn.mlp import MLPMoE
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning

if TYPE_CHECKING:
    from torch.optim import Optimizer

# Responses are the same up to 1e-3 where rounding is that of float32, and up to 8e-3 where a forward pass rounds to
# bfloat16 by itself. Factors that differ, such as K = 64 and K = 65, do so by more.
_TOLERANCE = 0.01
_Which = Literal["aggregation", "residual"]
_HOW = (("missing", -1), ("there twice", 1))  # what a factor is whose power is one less, or one more


@takes(model=a_module, optimizer=an_optimizer, plan=a_plan, claims=optional(claims), base=optional(a_module))
def verify(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan,
    claims: Claims | None = None,
    *,
    probe: Any = None,
    base: nn.Module | None = None,
) -> None:
    """Raise unless every trainable parameter is held once, with the plan's values, and the model has its factors.

    >>> import mssp
    >>> from mssp.nn import GPT, GPTConfig
    >>> config = GPTConfig(width=32, expert_width=16, experts=4, depth=2, vocabulary=64, context=16, head=16)
    >>> model, plan = GPT(config), mssp.plan(config.shape, regime="III", lr=4e-3)
    >>> mssp.initialize(model, plan)
    >>> optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    >>> verify(model, optimizer, plan, probe=torch.arange(16).view(1, 16))

    Call it after building or reloading. Learning rates may be anywhere on a schedule (see :func:`mssp.check_schedule`).

    Args:
        claims: what the parameters are, where the modules do not say so themselves (see :func:`mssp.describe`).
        probe: a small batch for the forward pass: a tuple is its arguments, a mapping its keyword arguments. With it,
            the factors of the forward pass, the depth and the number of active experts are measured.
        base: the same code, built for ``plan.extend(plan.base)``; its weights do not matter. Models of ``mssp.nn`` and
            of Hugging Face need none.

    A probe runs the model in evaluation mode, on weights that stand in for its own, and needs the memory for them. The
    model is left as it was. What the probe cannot measure it names in a ``PlanWarning``.
    """
    verification.verify(model, optimizer, plan, claims)
    if probe is None:
        if base is not None:
            raise ValueError("base is what a probe compares with: pass a batch as probe too")
        return
    model = unwrapped(model)
    if adapted(model):
        complaints = list(_of_hooks(model, plan, probe))
        note = "" if base is None else "base is not needed: what mssp.hf.adapt attached is measured in the model"
    else:
        complaints, note = _of_responses(model, plan, claims, probe, base)
    if complaints:
        raise ValueError("; ".join(complaints))
    if note:
        warnings.warn(note, PlanWarning, stacklevel=3)


# -- compared with a base ----------------------------------------------------------------------------------------------


def _of_responses(
    model: nn.Module, plan: Plan, claims: Claims | None, probe: Any, base: nn.Module | None
) -> tuple[list[str], str]:
    """What is wrong in a forward pass, from how the model and its base answer, and what could not be measured."""
    if base is None:
        with torch.random.fork_rng(devices=[]):  # building a model draws numbers
            reference, base_plan = _own_reference(model, plan)
    else:
        reference, base_plan = unwrapped(base), _at_base(plan)
    at_target = _measured(model, plan, claims, probe, "the model")
    at_base = _measured(reference, base_plan, claims, probe, "base")
    comparison = _Comparison(plan, base_plan, at_target, at_base, base is not None)
    unclear = "; ".join(comparison.unclear())
    if not at_target.writers and not at_target.moes:
        why = unclear or "nothing is added to a residual stream, and there is no MoE layer"
        raise ValueError(f"the probe measured nothing: {why}")
    return comparison.complaints(), f"the probe could not measure everything: {unclear}" if unclear else ""


def wrong_factors(
    models: tuple[nn.Module, nn.Module], plans: tuple[Plan, Plan], claims: Claims | None, run: Run, where: str
) -> list[str]:
    """What is wrong in the forward pass of the first model, which is larger than the second one.

    ``run`` calls a model on a batch, and ``where`` says of the second one where it stands: ``at width 64``.
    """
    larger, smaller = (
        responses(unwrapped(model), described_parameters(unwrapped(model), claims), run) for model in models
    )
    return _Comparison(*plans, larger, smaller, with_base=True, where=where).complaints()


def _at_base(plan: Plan) -> Plan:
    if plan.base is None:
        raise ValueError(
            "a probe compares the model with its base, and the plan has none: make it as plan(target, base)"
        )
    return replace(plan, target=plan.base)


def _own_reference(model: nn.Module, plan: Plan) -> tuple[nn.Module, Plan]:
    """A small model of ``mssp.nn`` to compare one with, of one expert and few blocks. All of its factors are 1."""
    small: GPT | MLPMoE
    if isinstance(model, GPT):
        depth, one = model.config.moe_every, {"expert_width": 1, "experts": 1, "active": None}  # both kinds of blocks
        small = GPT(replace(model.config, width=model.config.head, depth=depth, **one))  # type: ignore[arg-type]
    elif isinstance(model, MLPMoE):
        small = MLPMoE(replace(model.config, width=8, expert_width=1, experts=1, active=None, blocks=1))
    else:
        raise ValueError(
            "a probe compares the model with its base: pass base, the same code built for plan.extend(plan.base)"
        )
    small_plan = replace(plan, target=small.config.shape)
    for module, _, name, _ in planned_multipliers(small, small_plan):
        setattr(module, name, 1.0)
    return small.to(next(model.parameters()).device), small_plan


def _measured(model: nn.Module, plan: Plan, claims: Claims | None, probe: Any, which: str) -> Responses:
    described = described_parameters(model, claims)
    try:
        plan.resolve(info for info, _ in described)
    except ValueError as error:
        raise ValueError(f"{which} is not what the plan says: {error}") from None
    halves = (torch.bfloat16, torch.float16)
    wide = tree_map_only(Tensor, lambda x: x.float() if x.dtype in halves else x, probe)
    return responses(model, described, lambda model: _called(model, wide, which))


def _called(model: nn.Module, probe: Any, which: str) -> None:
    try:
        output_of(model, probe)
    except (TypeError, RuntimeError, IndexError) as error:
        first_line = str(error).partition("\n")[0]
        raise ValueError(f"{which} does not run on the probe: {first_line}") from error


@dataclass(frozen=True)
class _Comparison:
    """A model's responses beside those of a reference, which is its base or a small model of the same kind."""

    plan: Plan
    reference_plan: Plan
    target: Responses
    reference: Responses
    with_base: bool
    where: str = "at the base"

    def complaints(self) -> list[str]:
        return [*self._of_sizes(), *self._of_writers(), *self._of_moes()]

    def unclear(self) -> Iterator[str]:
        """What could not be measured, or not be compared."""
        there, names = (
            [*(writer.name for writer in found.writers), *(moe.name for moe in found.moes)]
            for found in (self.reference, self.target)
        )
        known = set(map(family, there))
        alone = {name: "the base has no such part" for name in names if family(name) not in known}
        yield from (f"{name}: {why}" for name, why in _together({**self.target.unclear, **alone}))
        yield from (f"base: {name}: {why}" for name, why in _together(self.reference.unclear))

    def _of_sizes(self) -> Iterator[str]:
        """Depth and active experts, which no parameter shows."""
        planned, planned_there = self.plan.target, self.reference_plan.target
        # Which number in a name counts the blocks, the base shows.
        counts = list(zip_longest(self.target.blocks, self.reference.blocks, fillvalue=0))
        seen = [planned.depth, planned_there.depth] if not self.reference.blocks else counts[0]
        found, found_there = next((each for each in counts if each[1] == planned_there.depth), seen)
        asked = planned_there.depth
        if found_there != asked:
            yield f"base: {found_there} blocks add to the residual stream, and the plan has {asked} there"
        elif found != planned.depth:
            yield f"{found} blocks add to the residual stream, and the plan's target has {planned.depth}"
        for whose, moes, active in (
            ("", self.target.moes, planned.active),
            ("base: ", self.reference.moes, planned_there.active),
        ):
            found_by_layer = {
                moe.name: f"a token's output depends on {moe.active}" for moe in moes if moe.active != active
            }
            for names, text in _together(found_by_layer):
                yield f"{whose}{names}: {text} experts, and the plan says {active}"

    def _of_writers(self) -> Iterator[str]:
        there: dict[str, list[float]] = defaultdict(list)
        for writer in self.reference.writers:
            there[family(writer.name)].append(writer.factor)
        verdicts = {
            writer.name: self._residual(writer.factor, median(there[family(writer.name)]))
            for writer in self.target.writers
            if there[family(writer.name)]
        }
        yield from (f"{names}: {text}" for names, text in _together(verdicts))

    def _of_moes(self) -> Iterator[str]:
        there = {family(moe.name): moe for moe in self.reference.moes}
        verdicts = {
            moe.name: self._of_moe(moe, there[family(moe.name)])
            for moe in self.target.moes
            if family(moe.name) in there
        }
        yield from (f"{names}: {text}" for names, text in _together(verdicts))

    def _of_moe(self, moe: MoEResponse, there: MoEResponse) -> str:
        """The complaint about a layer; an empty text for none.

        Where its module applies both factors, or its block does, only their product is what it should be.
        """
        shares = moe.shares or there.shares  # a single expert does not show it
        planned: dict[_Which, float] = {
            "aggregation": self._tuned if shares else self._planned("aggregation"),
            "residual": self._planned("residual"),
        }
        in_stream = _ratio(_counted(moe, moe.in_stream, shares), _counted(there, there.in_stream, shares))
        in_sum = _ratio(_counted(moe, moe.in_sum, shares), _counted(there, there.in_sum, shares))
        after = _ratio(moe.module_factor, there.module_factor)
        if in_stream is not None and _same(in_stream, math.prod(planned.values())):
            return ""
        found = []
        if in_sum is not None and not _same(in_sum, planned["aggregation"]):
            found.append(self._aggregation(in_sum, shares))
        if after is not None and moe.module_factor is not None and there.module_factor is not None:
            found += filter(None, [self._residual(moe.module_factor, there.module_factor)])
        if in_stream is None or found:
            return ", and ".join(found)
        return (
            f"what one of its experts puts out reaches the stream {in_stream:.4g} times as much as {self._there}, and "
            f"{self._named('aggregation')}, {self._named('residual')}: "
            f"{_which_are_off(in_stream, planned, self._absolute)}"
        )

    @property
    def _tuned(self) -> float:
        """What gates that are shares of one are multiplied by, over the reference: a base has what was tuned too."""
        return 1.0 if self.with_base else self.plan.aggregation_mult

    @property
    def _absolute(self) -> dict[_Which, float]:
        """The factors themselves, without what was tuned."""
        aggregation = self.plan.multiplier("aggregation") / self.plan.aggregation_mult
        return {"aggregation": aggregation, "residual": self.plan.multiplier("residual")}

    @property
    def _there(self) -> str:
        return self.where if self.with_base else "without any factor"

    def _planned(self, which: _Which) -> float:
        """The planned factor over that of the reference."""
        there = self.reference_plan.multiplier(which) if self.with_base else 1.0
        return self.plan.multiplier(which) / there

    def _named(self, which: _Which) -> str:
        if self.with_base and self.reference_plan.target != self.plan.base:
            return f"the plan's {which} factor is {self._planned(which):.4g} times what it is {self.where}"
        arguments = f"'{which}', relative=True" if self.with_base else f"'{which}'"
        return f"the plan's {which} factor is {self._planned(which):.4g} (plan.multiplier({arguments}))"

    def _residual(self, factor: float, there: float) -> str:
        """The complaint about a factor on the way into the stream; an empty text for none."""
        planned = self._planned("residual")
        if _same(factor / there, planned):
            return ""
        at_base = f", {self.where} times {there:.4g}" if self.with_base else ""
        how = _how_it_is_off(factor / there, planned, self._absolute["residual"])
        return f"its output reaches the stream times {factor:.4g}{at_base}, and {self._named('residual')}: it is {how}"

    def _aggregation(self, ratio: float, shares: bool) -> str:
        if shares:
            return (
                "its gates are shares of one, which take no aggregation factor, and the sum over its experts is "
                f"{ratio:.4g} times as large as {self._there}"
            )
        planned, tuned = self._planned("aggregation"), self.plan.aggregation_mult
        how = f"it is {_how_it_is_off(ratio, planned, self._absolute['aggregation'])}"
        if tuned != 1 and _same(ratio, planned * tuned):
            how = f"the base lacks aggregation_mult, {tuned:.4g}: build it for plan.extend(plan.base)"
        return (
            f"what one of its experts puts out counts {ratio:.4g} times as much in the sum as {self._there}, and "
            f"{self._named('aggregation')}: {how}"
        )


def _counted(moe: MoEResponse, in_sum: float | None, shares: bool) -> float | None:
    """What one expert counts; where gates are shares of one, what all of them do."""
    return None if in_sum is None else in_sum if shares else in_sum / moe.active


def _ratio(target: float | None, base: float | None) -> float | None:
    return None if target is None or base is None else target / base


def _same(found: float, planned: float) -> bool:
    return math.isclose(found, planned, rel_tol=_TOLERANCE)


def _how_it_is_off(found: float, planned: float, absolute: float) -> str:
    """In words, for a factor that is off over its base's; ``absolute`` is the factor itself."""
    for how, power in _HOW:
        if any(_same(found, planned * factor**power) for factor in (planned, absolute)):
            return how
    return f"{found / planned:.4g} times as large as planned"


def _which_are_off(found: float, planned: Mapping[_Which, float], absolute: Mapping[_Which, float]) -> str:
    """Which of two factors must be missing, or there twice, for the product of both to be what it is."""
    explained: dict[int, list[str]] = defaultdict(list)
    changes = {
        which: [("", 1.0), *((how, each**power) for how, power in _HOW for each in {planned[which], absolute[which]})]
        for which in planned
    }
    for several in product(*changes.values()):
        if _same(found, math.prod(planned.values()) * math.prod(change for _, change in several)):
            off = [f"the {which} factor is {how}" for which, (how, _) in zip(planned, several, strict=True) if how]
            explained[len(off)].append(" and ".join(off))
    likeliest = explained[min(explained)] if explained else []
    return ", or ".join(likeliest) or f"they are {found / math.prod(planned.values()):.4g} times as large as planned"


def _together(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is said of several blocks, once: the first of their names and how many more there are."""
    names_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, text in texts.items():
        if text:
            names_of[family(name), text].append(name)
    for (_, text), names in names_of.items():
        yield names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else ""), text


# -- what hooks do -----------------------------------------------------------------------------------------------------


def adapted(model: nn.Module) -> bool:
    """Whether ``mssp.hf.adapt`` prepared a model, whose factors are hooks."""
    return any(FACTOR_ATTRIBUTE in vars(module) for module in model.modules())


def _of_hooks(model: nn.Module, plan: Plan, probe: Any) -> Iterator[str]:
    """What is wrong in the forward pass of a model that ``mssp.hf.adapt`` prepared: what its hooks do, and sizes."""
    names = {module: name for name, module in model.named_modules()}
    stacks = list(experts.moe_layers(model))
    by_name: Mapping[str, PlannedFactor] = model.planned_factors()  # type: ignore[operator]
    planned = {module: by_name[name] for module, name in names.items() if name in by_name}
    blocks, active, factors = _run_with_hooks(model, probe, planned, [moe.experts.module for moe in stacks])
    if blocks != plan.target.depth:
        yield f"{blocks} blocks ran, and the plan's target has {plan.target.depth}"
    found = {
        names[module]: f"a token goes to {number}" for module, number in active.items() if number != plan.target.active
    }
    yield from (f"{stack}: {text} experts, and the plan says {plan.target.active}" for stack, text in _together(found))
    verdicts = {}
    for module, planned_factor in planned.items():
        factor = planned_factor.value(plan)
        # An expert that no token of the probe went to shows whether it has the hook, but not what that does.
        times = factors.get(module, factor ** list(module._forward_hooks.values()).count(scaled_output))
        if not _same(times, factor):
            verdicts[names[module]] = (
                f"its output is multiplied by {times:.4g}, and the plan's {planned_factor.label} factor is "
                f"{factor:.4g}: it is {_how_it_is_off(times, factor, factor)} (mssp.hf.adapt attaches it)"
            )
    yield from (f"{modules}: {text}" for modules, text in _together(verdicts))


def _run_with_hooks(
    model: nn.Module, probe: Any, planned: Iterable[nn.Module], stacks: Iterable[nn.Module]
) -> tuple[int, dict[nn.Module, int], dict[nn.Module, float]]:
    """Run a model once: the number of blocks that ran, the experts per token in stacks, and what outputs are times."""
    ran: list[nn.Module] = []
    active: dict[nn.Module, int] = {}
    factors: dict[nn.Module, float] = {}
    before: dict[nn.Module, Tensor] = {}

    def first(module: nn.Module, args: Any, output: Any) -> Any:
        y = main_output(output)
        before[module] = y.detach().clone() if y.any() else torch.ones_like(y)
        return None if y.any() else with_first(output, before[module].clone())

    def last(module: nn.Module, args: Any, output: Any) -> None:
        x, y = before.pop(module).double(), main_output(output).detach().double()
        if x.numel():
            factors.setdefault(module, float((x * y).sum() / x.square().sum()))

    def into_stack(module: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        chosen = [each for each in tensors if not each.is_floating_point() and each.dtype != torch.bool]
        if chosen:  # some layers choose inside, and give the stack no numbers of experts
            active[module] = chosen[0].shape[-1]

    with undisturbed(model), torch.no_grad(), ExitStack() as stack:
        for module in planned:
            stack.callback(module.register_forward_hook(first, prepend=True).remove)
            stack.callback(module.register_forward_hook(last).remove)
        for module in stacks:
            stack.callback(module.register_forward_pre_hook(into_stack, with_kwargs=True).remove)
        for block in blocks_of(model):
            stack.callback(block.register_forward_hook(lambda block, args, output: ran.append(block)).remove)
        torch.manual_seed(0)
        _called(model, probe, "the model")
    return len(ran), active, factors
