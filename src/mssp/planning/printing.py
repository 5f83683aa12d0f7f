"""Plans printed for people: a table as text or as Markdown, and the difference of two plans."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mssp._tables import align, markdown_table, number
from mssp.planning.arguments import ABSOLUTE, ALWAYS_ONE, GLOBAL
from mssp.planning.plan_file import MISSING, differences, document
from mssp.planning.power import Factor
from mssp.planning.rules import BIASES, GAINS, Rule
from mssp.planning.setting import title_of
from mssp.planning.shape import SYMBOLS

if TYPE_CHECKING:
    from mssp.planning.plans import Plan, Values

_OF_EXPERTS = ("N_e", "M", "K")
_ROLES_OF_EXPERTS = frozenset({
    "router", "router_bias", "expert_in", "expert_in_bias", "expert_out", "expert_out_bias", "shared_gate",
})  # fmt: skip


def title(plan: Plan) -> str:
    setting = plan.setting
    return ", ".join(filter(None, (setting.scheme.title, title_of(setting.regime), setting.optimizer.title)))


def facts(plan: Plan) -> list[tuple[str, str]]:
    """The lines above the table: sizes, tuned values and factors of the forward pass, by name."""
    tuned = [f"lr {number(plan.lr)}"]
    tuned += [f"lr of the rest {number(plan.rest_lr)}"] if plan.rest_lr is not None else []
    tuned += [f"eps {number(plan.eps)}"] if plan.eps is not None else []
    tuned += [f"weight decay {number(plan.weight_decay)}"] if plan.weight_decay else []
    for name, entries in (("lr_mult", plan.lr_mult), ("init_mult", plan.init_mult), ("init_std", plan.init_std)):
        tuned += [f"{name} {', '.join(f'{role}={number(x)}' for role, x in entries.items())}"] if entries else []
    sizes = [("base", plan.base), ("target", plan.target)]
    symbols = [symbol for symbol in SYMBOLS if symbol not in _OF_EXPERTS or not _without_experts(plan)]
    return [
        *((name, "  ".join(f"{s} {shape.dims[s]:.0f}" for s in symbols)) for name, shape in sizes if shape is not None),
        ("tuned", ", ".join(tuned)),
        *([("options", "; ".join(options))] if (options := _options(plan)) else []),
        ("forward", _forward(plan) + (f"; relative to the base: {_forward(plan, relative=True)}" if plan.base else "")),
        *plan.scope,
    ]


def _options(plan: Plan) -> list[str]:
    """What the plan has in place of a default, in words."""
    said = {
        "weight decay over lr_mult too": plan.decay_by_multiplier,
        "gains and biases decay": plan.decay_gains,
        "eps is absolute, not relative to the base": plan.eps_rule == ABSOLUTE,
        "one eps for all": plan.eps_rule == GLOBAL,
        "residual branches × 1 at every depth": plan.residual_rule == ALWAYS_ONE,
        f"{', '.join(plan.parts)}: parts of hidden, whose multipliers multiply its own": bool(plan.parts),
    }
    return [words for words, is_so in said.items() if is_so]


def _forward(plan: Plan, relative: bool = False) -> str:
    names: tuple[Literal["aggregation", "residual"], ...] = ("aggregation", "residual")
    shown = names[1:] if _without_experts(plan) else names
    return ", ".join(f"{which} {number(plan.multiplier(which, relative))}" for which in shown)


def _without_experts(plan: Plan) -> bool:
    """Whether a plan is for dense models, of which nothing is printed that routers and experts alone have."""
    shapes = [shape for shape in (plan.base, plan.target) if shape is not None]
    return plan.aggregation_mult == 1 and all(shape.is_without_experts for shape in shapes)


def columns(plan: Plan) -> list[str]:
    adam = [] if plan.eps is None else ["eps", "grad scale"] if plan.grad_scale else ["eps"]
    return ["role", "init std", "lr", *adam, *(["wd"] if plan.weight_decay else []), "note"]


def rows(plan: Plan) -> Iterator[list[str]]:
    """One row per role: each number with the Power behind it."""
    for role, values in _with_parts(plan):
        if role in _ROLES_OF_EXPERTS and _without_experts(plan):
            continue
        rule, of_hidden = plan.rule(values.role), ["part of hidden"] if values.part else []
        init = "0" if rule.init_std is None else _cell(rule, values.init_std, rule.init_std)
        cells = {"role": role, "init std": "1" if role in GAINS else init, "lr": _cell(rule, values.lr, rule.lr)}
        if values.eps is not None and rule.eps is not None:  # an optimizer without eps may move this role
            cells["eps"] = number(values.eps) if plan.grad_scale else _cell(rule, values.eps, rule.eps)
            cells["grad scale"] = _cell(rule, values.grad_scale, 1 / rule.eps)
        cells |= {"wd": number(values.weight_decay), "note": ", ".join(notes(values, *of_hidden))}
        yield [cells.get(name, "") for name in columns(plan)]


def _with_parts(plan: Plan) -> Iterator[tuple[str, Values]]:
    """The numbers of every role, and after ``hidden`` those of its parts that the plan names."""
    for role, values in plan.roles.items():
        yield role, values
        yield from plan.parts.items() if role == "hidden" else ()


def notes(values: Values, *also: str) -> list[str]:
    """The remarks on a role's numbers: whether experts start together, or at zero, and where the rule comes from."""
    start = []
    if values.shared == 1:
        start.append("tied")
    elif values.shared:
        start.append(f"shared {number(values.shared)}")
    elif values.zero and values.role not in BIASES:
        start.append("zero")
    return [*start, *also, *([values.source] if values.source != "table" else [])]


def _cell(rule: Rule, value: float, factor: Factor) -> str:
    return f"{number(value)}\t{rule.in_model_symbols(factor)}"


def lines(plan: Plan, heading: str = "") -> list[str]:
    """The lines of a printed plan: a heading, the facts, the table."""
    head = [heading or title(plan), *(f"  {name:<8} {content}" for name, content in facts(plan)), ""]
    return head + align([columns(plan), *rows(plan)])


def text(plan: Plan) -> str:
    return "\n".join([*lines(plan), *(f"warning: {warning}" for warning in plan.warnings)])


def markdown(plan: Plan) -> str:
    lines = [f"**{title(plan)}**", "", *(f"- {name}: {content}" for name, content in facts(plan)), ""]
    lines += markdown_table(columns(plan), list(rows(plan)))
    lines += ["", *(f"> **warning:** {warning}" for warning in plan.warnings)] if plan.warnings else []
    return "\n".join(lines)


@dataclass(frozen=True)
class Diff:
    """Entries of two plans that differ: path, value here, value there."""

    entries: tuple[tuple[str, Any, Any], ...]

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __str__(self) -> str:
        if not self.entries:
            return "no difference"
        return "\n".join(align([["", "this", "other"], *([path, _show(a), _show(b)] for path, a, b in self.entries)]))


def diff(plan: Plan, other: Plan) -> Diff:
    here, there = document(plan), document(other)
    for entries in (here, there):  # hash and warnings follow from the rest
        del entries["hash"], entries["warnings"]
    return Diff(tuple(differences(here, there, operator.eq)))


def _show(value: Any) -> str:
    return "–" if value in (None, MISSING) else number(value) if isinstance(value, float) else str(value)
