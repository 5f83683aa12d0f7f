"""Exported files: the head, the constants, the groups, how parameters start, and the code of the host."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

from mssp.hosts.rows import Group, Parameter, PlannedParameter, Sizes, groups_of, planned_parameters

if TYPE_CHECKING:
    from mssp.planning.plans import Plan
    from mssp.planning.power import Factor

_COLUMNS = 120
# The Powers behind factors of the forward pass.
_POWERS: Mapping[Literal["aggregation", "residual"], str] = {"aggregation": "K^-1", "residual": "L^-1"}
# Numbers of a group as Python source, by name, each with a note on where it comes from.
Numbers = dict[str, tuple[str, str]]


def file_text(
    plan: Plan,
    sizes: Sizes,
    vocabulary: Sequence[Parameter],
    host: str,
    code: str,
    by_hand: Sequence[str],
    constants: Sequence[str],
    *,
    groups: str,
    group_text: Callable[[Plan, Group, int], str],
    pattern: Callable[[str], str] = '"{}"'.format,
) -> str:
    """The text of an exported file.

    Args:
        host: its name as its users write it.
        code: the host's file in ``exported``.
        by_hand: what is left to do by hand.
        constants: assignments, as lines.
        groups: the name of the list of groups; ``group_text`` writes a group, from its number in the list.
        pattern: writes the pattern of a parameter as Python source.
    """
    planned = planned_parameters(plan, vocabulary, sizes)
    imports, definitions = _code(code)
    lines = [
        *_head(plan, sizes, host, by_hand),
        "",
        imports,
        "",
        *constants,
        "",
        f"{groups} = [",
        *(group_text(plan, group, number) for number, group in enumerate(groups_of(planned))),
        "]",
        "",
        *_starts(plan, planned, pattern),
        "",
        "",
        definitions,
    ]
    return "\n".join(lines)


def literal(value: float) -> str:
    """A number as Python source, to twelve digits.

    >>> literal(0.0005), literal(1.0), literal(1.5625e-10)
    ('0.0005', '1.0', '1.5625e-10')
    """
    text = f"{value:.12g}"
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def _code(file: str) -> tuple[str, str]:
    """The imports and the definitions of an exported file.

    The definitions of ``starts`` that are called stand behind those of the host. A function that the host defines
    itself takes the place of the common one.
    """
    imports, own = parts(file)
    common = {name: own.pop(name, text) for name, text in parts("starts")[1].items()}
    everything = "\n".join([*own.values(), *common.values()])
    called = [text for name, text in common.items() if everything.count(f"{name}(") > 1]
    return imports, "\n\n\n".join([*own.values(), *called]) + "\n"


def parts(file: str) -> tuple[str, dict[str, str]]:
    """A file of ``exported``: its imports from elsewhere, and its definitions by name."""
    text = files("mssp.hosts").joinpath("exported", f"{file}.py").read_text(encoding="utf-8")
    head, *definitions = text.strip().split("\n\n\n")
    imports = [block for block in head.split("\n\n") if re.match(r"(import|from) (?!mssp)", block)]
    by_name = {re.findall(r"^(?:def |class )?(\w+)", text, re.MULTILINE)[0]: text for text in definitions}
    return "\n\n".join(imports), by_name


def constants_of(plan: Plan) -> list[str]:
    """The constants of every host: what shapes are checked against, and the seed."""
    base = plan.base
    proportion = base is not None and plan.target.expert_width * base.width == base.expert_width * plan.target.width
    grows = [plan.target.width, *([plan.target.expert_width] if proportion else [])]
    return [
        f"EXPERTS = {plan.target.experts}",
        f"GROW = {tuple(grows)}  # a side that is a multiple of one of these grows as the width does",
        "SEED = 0",
    ]


def factors(plan: Plan) -> tuple[str, str, str]:
    """The constants of the forward pass: on the sum over experts by the kind of gates, and on the residual stream."""
    aggregation, residual = (literal(plan.multiplier(name, relative=True)) for name in _POWERS)
    return (
        f"AGGREGATION = {aggregation}  # {_factor(plan, 'aggregation')}, for gates that do not sum to one",
        f"AGGREGATION_OF_SUMMING_GATES = {literal(plan.aggregation_mult)}",
        f"RESIDUAL = {residual}  # {_factor(plan, 'residual')}",
    )


def _factor(plan: Plan, which: Literal["aggregation", "residual"]) -> str:
    """The Power behind a factor of the forward pass, and what it is relative to."""
    power = _POWERS[which]
    if not plan.setting.scheme.averages:
        power = f"1 in {plan.setting.scheme.title}"
    elif plan.base is not None:
        power = f"relative to the base: {power}"
    tuned = which == "aggregation" and plan.aggregation_mult != 1
    return f"{power}, times the tuned {literal(plan.aggregation_mult)}" if tuned else power


def numbers(plan: Plan, group: Group) -> Numbers:
    """What the optimizer takes for a group. The notes are Powers, which for a hidden matrix are of its own sides."""
    values = group.values
    rule, tuned = plan.rule(values.role), plan.lr_mult.get(values.role)
    times = "" if tuned is None else f", times the tuned {literal(tuned)}"
    entries = {"lr": (literal(values.lr), plain(rule.lr) + times)}
    if values.eps is not None:
        entries["eps"] = (literal(values.eps), plain(rule.eps))
    entries["weight_decay"] = (literal(values.weight_decay), plain(1 / rule.lr) if values.weight_decay else "")
    if plan.recipe.betas is not None:
        entries["betas"] = (str(plan.recipe.betas), "")
    return entries


def assignments(form: str, numbers: Numbers) -> str:
    """Numbers as lines, with their notes as comments.

    >>> print(assignments("{}={},", {"lr": ("0.001", "N^-1"), "betas": ("(0.9, 0.95)", "")}))
    lr=0.001,  # N^-1
    betas=(0.9, 0.95),
    """
    lines = (form.format(name, text) + (f"  # {note}" if note else "") for name, (text, note) in numbers.items())
    return "\n".join(lines)


def lines(form: str, patterns: Iterable[str]) -> str:
    """Patterns as lines."""
    return "\n".join(map(form.format, patterns))


def plain(factor: Factor | None) -> str:
    """A Power in ASCII; 0 where there is none."""
    return "0" if factor is None else factor.plain()


def label(group: Group) -> str:
    """A group in words: its role, and the input sides where they are not all the width."""
    sides = list(dict.fromkeys(planned.parameter.fan_in for planned in group.members))
    return group.values.role if sides == ["width"] else f"{group.values.role}, input side {', '.join(sides)}"


def _starts(plan: Plan, planned: Sequence[PlannedParameter], pattern: Callable[[str], str]) -> list[str]:
    """The table of how every parameter starts."""
    lines = [
        "# How parameters start: pattern, way, standard deviation, shape (None: any size; 'grows': a multiple of what",
        "# grows as the width does), and for 'own fan-in', whose number is a constant before fan_in^-1/2, that axis.",
        "STARTS = [",
    ]
    for row in planned:
        power = plain(plan.rule(row.parameter.role).init_std)
        note = {
            "ones": "1",
            "zeros": "0",
            "normal": power,
            "own fan-in": "fan_in^-1/2, from the tensor",
            "tied": f"{power}, all experts equal",
        }[row.way]
        std = "1.0" if row.way == "ones" else literal(row.std)
        lines.append(f"    # {row.parameter.role}: {note}")
        lines.append(f"    ({pattern(row.parameter.pattern)}, {row.way!r}, {std}, {row.shape}, {row.in_axis}),")
    return [*lines, "]"]


def _head(plan: Plan, sizes: Sizes, host: str, by_hand: Sequence[str]) -> list[str]:
    """Comments on top of the file: which plan it is, what was assumed, what is left to do."""
    from mssp._environment import __version__

    regime = f"Regime {plan.regime}, " if plan.regime else ""
    scheme = f"{plan.setting.scheme.title}, {regime}{plan.setting.optimizer.title}".replace("μ", "mu")
    base = f"base {_shape(plan.base)} -> " if plan.base else ""
    betas = "the plan has none: the host's own" if plan.recipe.betas is None else f"{plan.recipe.betas}"
    tuned = f"tuned: lr {literal(plan.lr)}"
    tuned += f", eps {literal(plan.eps)}" if plan.eps is not None else ""
    tuned += f", weight decay {literal(plan.weight_decay)}" if plan.weight_decay else ""
    facts = [
        f"{scheme}; plan {plan.hash}, written by mssp {__version__} for {host}.",
        f"{base}target {_shape(plan.target)}; {tuned}.",
        *([f"betas: {betas}."] if plan.setting.optimizer.eps is not None else []),
        "",
        "Sides of hidden matrices beside the width (a size that does not fit is refused when the model is filled):",
        *(f"  {line}" for line in sizes.assumptions(plan)),
        "",
        "To do by hand:",
        *(f"  - {line}" for line in by_hand),
        *(["", *(f"Warning: {warning}." for warning in plan.warnings)] if plan.warnings else []),
    ]
    lines: list[str] = []
    for fact in facts:
        bullet = "    " if fact.startswith("  - ") else "  " if fact.startswith("  ") else ""
        # Newlines in a fact become spaces here: every line of the head is a comment.
        lines += textwrap.wrap(fact, _COLUMNS - 2, subsequent_indent=bullet) or [""]
    return [f"# {line}".rstrip() for line in lines]


def _shape(shape: object) -> str:
    return repr(shape).removeprefix("Shape(").removesuffix(")").replace(",", "")


def fused_note(name: str) -> str:
    """A note on queries, keys and values in one matrix, for SGD, under which output sides count too."""
    return (
        f"{name} holds queries, keys and values in one matrix, and takes the learning rate that SGD has for queries, "
        "also where keys and values have fewer heads."
    )
