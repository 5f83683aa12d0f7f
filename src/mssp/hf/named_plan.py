"""A plan for the model of a Hugging Face config, by the name of every parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mssp._tables import align, markdown_table, number
from mssp.apply.description import described_parameters, multipliers_of
from mssp.hf.adaptation import adapt
from mssp.hf.factors import BY_PLAN, FromPlan
from mssp.hf.meta import config_of, on_meta
from mssp.hf.probing import RENORMALISED
from mssp.hf.vocabulary import Place, for_all_blocks, for_blocks
from mssp.planning.configs import RENORMALISED_NOTE
from mssp.planning.parameter import OWN, ParamInfo
from mssp.planning.plan_file import document
from mssp.planning.plans import Plan, Values
from mssp.planning.printing import facts, notes, title
from mssp.planning.rules import BIASES, GAINS


@dataclass(frozen=True)
class Named:
    """Parameters that share a name but for the numbers of blocks, a shape and all values."""

    name: str
    shape: tuple[int, ...]
    info: ParamInfo
    values: Values


@dataclass(frozen=True)
class ByName:
    """A plan for one model, parameter by parameter; ``factors`` of the forward pass in words, with what they are on."""

    plan: Plan
    parameters: Sequence[Named]
    factors: Sequence[str]

    def lines(self) -> list[str]:
        """As text: a heading, the facts, the table, the factors."""
        above = [title(self.plan), *(f"  {name:<8} {content}" for name, content in self._facts()), ""]
        below = ["", "outputs multiplied by hooks", *(f"  {factor}" for factor in self.factors)]
        return above + align([self._columns(), *self._rows()]) + (below if self.factors else [])

    def markdown(self) -> str:
        lines = [f"**{title(self.plan)}**", "", *(f"- {name}: {content}" for name, content in self._facts()), ""]
        lines += markdown_table(self._columns(), list(self._rows()))
        lines += ["", *(f"- {factor}" for factor in self.factors)]
        lines += ["", *(f"> **warning:** {warning}" for warning in self.plan.warnings)]
        return "\n".join(lines).rstrip()

    def json(self) -> dict[str, Any]:
        """The plan, the table as people read it, and the factors: for reports; a plan file alone is for programs."""
        table = {"header": self._columns(), "rows": list(self._rows())}
        return {"plan": document(self.plan), "parameters": table, "factors": list(self.factors)}

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *(f"warning: {warning}" for warning in self.plan.warnings)])

    def _facts(self) -> list[tuple[str, str]]:
        """Without the factors of a model of our own: what this one gets stands below the table."""
        return [(name, content) for name, content in facts(self.plan) if name != "forward"]

    def _columns(self) -> list[str]:
        adam = ["eps"] if self.plan.eps is not None else []
        scaled = ["grad scale"] if self.plan.grad_scale else []
        return ["parameter", "shape", "role", "init std", "lr", *adam, *scaled, *self._decay("wd"), "note"]

    def _rows(self) -> Iterator[list[str]]:
        for each in self.parameters:
            values = each.values
            eps = [] if self.plan.eps is None else ["" if values.eps is None else number(values.eps)]
            scaled = [number(values.grad_scale)] if self.plan.grad_scale else []
            shape = " × ".join(map(str, each.shape))
            numbers = [number(values.lr), *eps, *scaled, *self._decay(number(values.weight_decay))]
            yield [each.name, shape, values.role, _start(each), *numbers, _note(each)]

    def _decay(self, cell: str) -> list[str]:
        return [cell] if self.plan.weight_decay else []


def by_name(plan: Plan, target: Any, base: Any = None) -> ByName:
    """The plan for the model of a config, which is built without memory; ``base`` is the config that was tuned."""
    model = on_meta(config_of(target))
    adapt(model, base=None if base is None else config_of(base))
    described = described_parameters(model)
    values = plan.resolve(info for info, _ in described)
    alike: dict[tuple[Any, ...], list[str]] = {}
    first: dict[tuple[Any, ...], Named] = {}
    for info, parameter in described:
        pattern, shape = for_all_blocks(info.name), tuple(parameter.shape)
        key = (pattern, shape, values[info.name])
        alike.setdefault(key, []).append(info.name)
        first.setdefault(key, Named(pattern, shape, info, values[info.name]))
    patterns = [key[0] for key in alike]
    named = [
        each if patterns.count(each.name) == 1 else replace(each, name=_with_blocks(each.name, alike[key]))
        for key, each in first.items()
    ]
    multipliers_of(model, plan)  # which refuses a plan for another model, or from another base
    kinds = {module.__dict__.get("gate_kind") for module in model.modules()}
    if RENORMALISED in kinds and RENORMALISED_NOTE not in plan.warnings:  # measured: no config says so of every family
        plan = plan.with_warnings([RENORMALISED_NOTE])
    factors = dict.fromkeys(
        f"× {number(by_plan.value(plan))}  {for_all_blocks(path)}  ({by_plan.what})"
        for path, module in model.named_modules()
        if isinstance(by_plan := module.__dict__.get(BY_PLAN), FromPlan) and by_plan.value(plan) != 1.0
    )
    return ByName(plan, named, tuple(factors))


def _with_blocks(pattern: str, names: Sequence[str]) -> str:
    """A pattern with the numbers of the blocks that it stands for, where other blocks differ."""
    numbers = sorted({block for name in names if (block := Place.of(name).block) is not None})
    runs: list[list[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    text = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return for_blocks(pattern, text)


def _start(each: Named) -> str:
    if each.info.start == OWN:
        return "own"
    if each.values.role in GAINS | BIASES:
        usual = 1.0 if each.values.role in GAINS else 0.0
        return number(usual if each.info.start is None else each.info.start)
    return number(each.values.init_std)


def _note(each: Named) -> str:
    also = ["also the readout"] if each.info.tied_readout else []
    return ", ".join(notes(each.values, *also))
