"""The table of a plan for the model of a Hugging Face config: every parameter by its name, with its numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from typing import Any

from torch import nn

from mssp._constraints import a_config, a_plan, optional, shown, takes
from mssp._forms import Form
from mssp._tables import align, markdown_table, number
from mssp.apply.description import describe, multipliers_of, planned_parameters
from mssp.hf.adaptation import adapt
from mssp.hf.balancing import COEFFICIENTS
from mssp.hf.factors import RULE_ATTRIBUTE, PlannedFactor
from mssp.hf.kept_plan import forget
from mssp.hf.meta import config_of, on_meta
from mssp.hf.probing import RENORMALISED
from mssp.hf.vocabulary import Place, for_all_blocks, for_blocks
from mssp.planning.configs import RENORMALISED_NOTE
from mssp.planning.parameter import OWN, ParamInfo
from mssp.planning.plan_file import document
from mssp.planning.plans import Plan, Values
from mssp.planning.printing import facts, notes, title
from mssp.planning.rules import BIASES, GAINS
from mssp.planning.sides import sides_of

FORM = Form("plan file by name", "mssp.hf", "named_plan.schema.json")


@dataclass(frozen=True)
class NamedParameters:
    """A row of the table: parameters of one shape with equal numbers, in several blocks or experts."""

    name: str
    shape: tuple[int, ...]
    info: ParamInfo
    values: Values


@dataclass(frozen=True)
class ByName:
    """A plan for one model, parameter by parameter.

    ``factors`` says in words which outputs are multiplied by what, ``coefficients`` what those of losses become.
    """

    plan: Plan
    parameters: Sequence[NamedParameters]
    factors: Sequence[str]
    coefficients: Sequence[str] = ()

    def lines(self) -> list[str]:
        """The plan as text: a heading, the facts, the table, the factors, the coefficients."""
        above = [title(self.plan), *(f"  {name:<8} {content}" for name, content in self._facts()), ""]
        table = above + align([self._columns(), *self._rows()])
        for heading, entries in (
            ("outputs multiplied by hooks", self.factors), ("coefficients of losses", self.coefficients),
        ):  # fmt: skip
            table += ["", heading, *(f"  {entry}" for entry in entries)] if entries else []
        return table

    def markdown(self) -> str:
        """The plan as Markdown: a heading, the facts, the table, the factors, the coefficients, the warnings."""
        lines = [f"**{title(self.plan)}**", "", *(f"- {name}: {content}" for name, content in self._facts()), ""]
        lines += markdown_table(self._columns(), list(self._rows()))
        lines += ["", *(f"- {entry}" for entry in (*self.factors, *self.coefficients))]
        lines += ["", *(f"> **warning:** {warning}" for warning in self.plan.warnings)]
        return "\n".join(lines).rstrip()

    def json(self) -> dict[str, Any]:
        """The plan, the table as people read it, factors and coefficients, for reports. Programs read plan files."""
        table = {"header": self._columns(), "rows": list(self._rows())}
        return {"plan": document(self.plan), "parameters": table, "factors": [*self.factors, *self.coefficients]}

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *(f"warning: {warning}" for warning in self.plan.warnings)])

    def _facts(self) -> list[tuple[str, str]]:
        """The facts of the plan without the factors of ``mssp.nn``: those of this model stand below the table."""
        return [(name, content) for name, content in facts(self.plan) if name != "forward"]

    def _columns(self) -> list[str]:
        return ["parameter", "shape", "role", "init std", "lr", *self._optional("eps", "grad scale", "wd"), "note"]

    def _rows(self) -> Iterator[list[str]]:
        for parameter in self.parameters:
            values = parameter.values
            shape = " × ".join(map(str, parameter.shape))
            eps = "" if values.eps is None else number(values.eps)
            optional = self._optional(eps, number(values.grad_scale), number(values.weight_decay))
            start, lr = _initial_std(parameter), number(values.lr)
            yield [parameter.name, shape, values.role, start, lr, *optional, _note(parameter)]

    def _optional(self, eps: str, grad_scale: str, weight_decay: str) -> list[str]:
        """Those of three cells of a row, or of the header, whose columns this plan has."""
        has_column = (self.plan.eps is not None, self.plan.grad_scale, bool(self.plan.weight_decay))
        return list(compress((eps, grad_scale, weight_decay), has_column))


@takes(plan=a_plan, target=a_config, base=optional(a_config))
def by_name(plan: Plan, target: Any, base: Any = None) -> ByName:
    """The plan for the model of a config, by parameter name; the model is built without memory.

    ``base`` is the config of the model that was tuned.
    """
    return _of_model(plan, _adapted(target, base))


def by_name_with_sides(plan: Plan, target: Any, base: Any = None) -> ByName:
    """The same, of the plan with the sides of the model's matrices, which :func:`mssp.hf.plan` would build again."""
    model = _adapted(target, base)
    return _of_model(plan.with_sides(sides_of(plan.completed(describe(model)))), model)


def _adapted(target: Any, base: Any) -> nn.Module:
    model = on_meta(config_of(target))
    forget(model)  # a plan that the config of a checkpoint keeps
    adapt(model, base=None if base is None else config_of(base))
    return model


def _of_model(plan: Plan, model: nn.Module) -> ByName:
    infos_of_row: dict[tuple[str, tuple[int, ...], Values], list[ParamInfo]] = {}
    for info, parameter, values in planned_parameters(model, plan, None):
        infos_of_row.setdefault((for_all_blocks(info.name), tuple(parameter.shape), values), []).append(info)
    rows_of_pattern = Counter(pattern for pattern, _, _ in infos_of_row)
    rows = []
    for (pattern, shape, values), infos in infos_of_row.items():
        name = pattern if rows_of_pattern[pattern] == 1 else _with_blocks(pattern, [info.name for info in infos])
        rows.append(NamedParameters(name, shape, infos[0], values))
    multipliers_of(model, plan)  # refuses a plan for another model, or from another base
    gates = {module.__dict__.get("gate_kind") for module in model.modules()}
    if RENORMALISED in gates and RENORMALISED_NOTE not in plan.warnings:  # not every family's config says so
        plan = plan.with_warnings([RENORMALISED_NOTE])
    factors = dict.fromkeys(
        f"× {number(planned_factor.value(plan))}  {for_all_blocks(path)}  ({planned_factor.label})"
        for path, module in model.named_modules()
        if isinstance(planned_factor := module.__dict__.get(RULE_ATTRIBUTE), PlannedFactor)
        and planned_factor.value(plan) != 1.0
    )
    coefficients = tuple(each.text(plan) for each in model.__dict__.get(COEFFICIENTS) or ())
    return ByName(plan, rows, tuple(factors), coefficients)


def plan_of(document: Mapping[str, Any]) -> Plan:
    """The plan of a document that :meth:`ByName.json` wrote; a ValueError names what is wrong with the document."""
    FORM.refuse_unfit(document)
    plan, table = Plan.from_json(json.dumps(document["plan"])), document["parameters"]
    for index, row in enumerate(table["rows"]):
        if len(row) != len(table["header"]):
            raise FORM.corrupt(f"parameters.rows.{index} must be {len(table['header'])} texts, got {len(row)}")
        role = dict(zip(table["header"], row, strict=True)).get("role")
        if role is not None and role not in plan.all_roles:
            raise FORM.corrupt(f"parameters.rows.{index} is of {shown(role)}, which is no role of the plan")
    return plan


def _with_blocks(pattern: str, names: Sequence[str]) -> str:
    """A pattern with the numbers of the blocks that these names are in."""
    numbers = sorted({block for name in names if (block := Place.of(name).block) is not None})
    # Within a run of consecutive numbers, the difference between number and position stays the same.
    by_run = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    runs = [[block for _, block in run] for _, run in by_run]
    text = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return for_blocks(pattern, text)


def _initial_std(parameter: NamedParameters) -> str:
    """The cell for initial values: the standard deviation, the value of gains and biases, or ``own``."""
    start, role = parameter.info.start, parameter.values.role
    if start == OWN:
        return "own"
    if role in GAINS | BIASES:
        return number(float(role in GAINS) if start is None else start)
    return number(parameter.values.init_std)


def _note(parameter: NamedParameters) -> str:
    tied = ["also the readout"] if parameter.info.tied_readout else []
    part = [parameter.values.part] if parameter.values.part else []
    return ", ".join(notes(parameter.values, *part, *tied))
