"""Plans for people: the table one wants to see, as text, as Markdown, and the difference of two plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mssp import plan_json
from mssp.power import Power
from mssp.rules import BIASES, GAINS
from mssp.shape import SYMBOLS

if TYPE_CHECKING:
    from mssp.planning import Plan

SCHEME_NAMES = {
    "mssp": "MSSP",
    "mup": "μP",
    "mup-heuristic": "μP by shape",
    "sp": "SP",
    "ntp": "NTP",
    "jiang": "Jiang et al.",
}
OPTIMIZER_NAMES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}


def number(value: float) -> str:
    """Four significant digits, without noise.

    >>> number(0.0005), number(1 / 3), number(1e-13)
    ('0.0005', '0.3333', '1e-13')
    """
    return f"{value:.4g}"


def title(plan: Plan) -> str:
    regime = f"Regime {plan.regime}, " if plan.regime else ""
    return f"{SCHEME_NAMES[plan.scheme]}, {regime}{OPTIMIZER_NAMES[plan.optimizer]}"


def facts(plan: Plan) -> list[tuple[str, str]]:
    """What stands above the table: name and text."""
    tuned = [f"lr {number(plan.lr)}"]
    tuned += [f"eps {number(plan.eps)}"] if plan.eps is not None else []
    tuned += [f"weight decay {number(plan.weight_decay)}"] if plan.weight_decay else []
    for name, entries in (("lr_mult", plan.lr_mult), ("init_mult", plan.init_mult), ("init_std", plan.init_std)):
        tuned += [f"{name} {', '.join(f'{role}={number(x)}' for role, x in entries.items())}"] if entries else []
    forward = [f"{which} {number(plan.multiplier(which))}" for which in ("aggregation", "residual")]
    relative = [f"{which} {number(plan.multiplier(which, relative=True))}" for which in ("aggregation", "residual")]
    sizes = [("base", plan.base), ("target", plan.target)]
    return [
        *((name, "  ".join(f"{s} {shape.dims[s]:.0f}" for s in SYMBOLS)) for name, shape in sizes if shape is not None),
        ("tuned", ", ".join(tuned)),
        ("forward", ", ".join(forward) + (f"; relative to the base: {', '.join(relative)}" if plan.base else "")),
    ]


def columns(plan: Plan) -> list[str]:
    scaled = ["grad scale"] if plan.grad_scale else []
    adam = ["eps", *scaled] if plan.optimizer != "sgd" else []
    return ["role", "init std", "lr", *adam, *(["wd"] if plan.weight_decay else []), "note"]


def rows(plan: Plan) -> Iterator[list[str]]:
    """One row per role: each number with the Power behind it."""
    for role, values in plan.roles.items():
        rule = plan.rule(role)

        def cell(value: float, power: Power, rule: Any = rule) -> str:
            return f"{number(value)}\t{rule.by_shape(power)}"

        init = "0" if rule.init_std is None else cell(values.init_std, rule.init_std)
        row = [role, "1" if role in GAINS else init, cell(values.lr, rule.lr)]
        if values.eps is not None and rule.eps is not None:
            scaling = [cell(values.grad_scale, 1 / rule.eps)] if plan.grad_scale else []
            row += [number(values.eps), *scaling] if plan.grad_scale else [cell(values.eps, rule.eps)]
        row += [number(values.weight_decay)] if plan.weight_decay else []
        notes = ["tied"] if values.tied else ["zero"] if values.zero and role not in BIASES else []
        notes += [values.source] if values.source != "table" else []
        yield [*row, ", ".join(notes)]


def table(plan: Plan) -> list[list[str]]:
    return [columns(plan), *rows(plan)]


def text(plan: Plan) -> str:
    lines = table_lines(title(plan), facts(plan), table(plan))
    return "\n".join([*lines, *(f"warning: {warning}" for warning in plan.warnings)])


def table_lines(title: str, facts: Sequence[tuple[str, str]], table: Sequence[Sequence[str]]) -> list[str]:
    """A title, facts by name, and a table under them."""
    return [title, *(f"  {name:<8} {content}" for name, content in facts), "", *align(table)]


def markdown(plan: Plan) -> str:
    lines = [f"**{title(plan)}**", "", *(f"- {name}: {content}" for name, content in facts(plan)), ""]
    lines += markdown_table(columns(plan), list(rows(plan)))
    lines += ["", *(f"> **warning:** {warning}" for warning in plan.warnings)] if plan.warnings else []
    return "\n".join(lines)


def markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(" ".join(cell.split()) for cell in row) + " |" for row in body]


def align(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side, a rule under the header; within a cell, what follows a tab lines up too."""
    columns = [_aligned_cells(column) for column in zip(*table, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]


def _aligned_cells(column: Sequence[str]) -> list[str]:
    first = max((len(cell.partition("\t")[0]) for cell in column if "\t" in cell), default=0)
    parts = [cell.partition("\t") for cell in column]
    return [f"{head:<{first}} {tail}" if tab else head for head, tab, tail in parts]


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
    here, there = plan_json.document(plan), plan_json.document(other)
    found = [entry for entry in _walk(here, there, "") if entry[0] not in ("hash", "version", "warnings")]
    return Diff(tuple(found))


def _walk(here: Any, there: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in dict.fromkeys((*here, *there)):
            yield from _walk(here.get(key), there.get(key), f"{path}.{key}" if path else key)
    elif here != there:
        yield path, here, there


def _show(value: Any) -> str:
    return "–" if value is None else number(value) if isinstance(value, float) else str(value)
