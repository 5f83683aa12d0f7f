"""Writes exported files: the head, the constants, the groups, how parameters start, and the code of the host."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

from mssp.hosts.rows import Group, Parameter, PlannedParameter, Sizes, groups_of, planned_vocabulary
from mssp.planning.printing import title

if TYPE_CHECKING:
    from mssp.planning.plans import Plan
    from mssp.planning.power import Factor

_COLUMNS = 120
# How the factors of the forward pass scale with the number of active experts K and the depth L.
_POWERS: Mapping[Literal["aggregation", "residual"], str] = {"aggregation": "K^-1", "residual": "L^-1"}
# Numbers of a group as Python source, by name, each with a note on where it comes from.
Numbers = dict[str, tuple[str, str]]


def file_text(
    plan: Plan,
    sizes: Sizes,
    vocabulary: Sequence[Parameter],
    host: str,
    file: str,
    instructions: Sequence[str],
    constants: Sequence[str],
    *,
    groups_name: str,
    write_group: Callable[[Plan, Group, int], str],
    write_pattern: Callable[[str], str] = '"{}"'.format,
) -> str:
    """The text of an exported file.

    Args:
        vocabulary: the parameters that the host's models have.
        host: the host's name as its users write it.
        file: the name of the host's file in ``exported``.
        instructions: what the user has to do by hand.
        constants: assignments, one in a line.
        groups_name: the name of the list of groups.
        write_group: writes a group as Python source, from the group and its number in the list.
        write_pattern: writes the pattern of a parameter as Python source.
    """
    planned = planned_vocabulary(plan, vocabulary, sizes)
    imports, definitions = _host_code(file)
    lines = [
        *_head(plan, sizes, host, instructions),
        "",
        imports,
        "",
        *constants,
        "",
        f"{groups_name} = [",
        *(write_group(plan, group, number) for number, group in enumerate(groups_of(planned))),
        "]",
        "",
        *_starts(plan, planned, write_pattern),
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


def _host_code(file: str) -> tuple[str, str]:
    """The imports and the definitions of an exported file.

    Those functions of ``exported/starts.py`` that are called follow the host's own. Where the host defines a function
    of the same name, it replaces that of ``starts``.
    """
    imports, own = imports_and_definitions(file)
    common = {name: own.pop(name, text) for name, text in imports_and_definitions("starts")[1].items()}
    all_code = "\n".join([*own.values(), *common.values()])
    called = [text for name, text in common.items() if all_code.count(f"{name}(") > 1]
    return imports, "\n\n\n".join([*own.values(), *called]) + "\n"


def imports_and_definitions(file: str) -> tuple[str, dict[str, str]]:
    """The imports of a file of ``exported`` except those of mssp, and its definitions by name."""
    text = files("mssp.hosts").joinpath("exported", f"{file}.py").read_text(encoding="utf-8")
    top, *definitions = text.strip().split("\n\n\n")
    imports = [block for block in top.split("\n\n") if re.match(r"(import|from) (?!mssp)", block)]
    by_name = {re.findall(r"^(?:def |class )?(\w+)", code, re.MULTILINE)[0]: code for code in definitions}
    return "\n\n".join(imports), by_name


def constants_of(plan: Plan) -> list[str]:
    """The constants that the files of all hosts have: what shapes are checked against, and the seed."""
    base, target = plan.base, plan.target
    proportional = base is not None and target.expert_width * base.width == base.expert_width * target.width
    growing = [target.width, *([target.expert_width] if proportional else [])]
    return [
        f"EXPERTS = {target.experts}",
        f"GROW = {tuple(growing)}  # a side that is a multiple of one of these grows as the width does",
        "SEED = 0",
    ]


def factors(plan: Plan) -> tuple[str, str, str]:
    """The lines of three factors: two on the sum over experts, by the kind of gates, and one on the residual stream."""
    aggregation, residual = (literal(plan.multiplier(name, relative=True)) for name in _POWERS)
    return (
        f"AGGREGATION = {aggregation}  # {_power_note(plan, 'aggregation')}, for gates that do not sum to one",
        f"AGGREGATION_OF_SUMMING_GATES = {literal(plan.aggregation_mult)}",
        f"RESIDUAL = {residual}  # {_power_note(plan, 'residual')}",
    )


def kind_of_gates(plan: Plan) -> str:
    """The line that says for which gates the plan is."""
    return f"GATES_SUM_TO_ONE = {plan.gates_sum_to_one}  # as planned: the router's eps depends on it"


def _power_note(plan: Plan, which: Literal["aggregation", "residual"]) -> str:
    """A note on a factor of the forward pass: how it scales, and what it is relative to."""
    note = _POWERS[which]
    if not plan.setting.scheme.averages:
        note = f"1 in {plan.setting.scheme.title}"
    elif plan.base is not None:
        note = f"relative to the base: {note}"
    is_tuned = which == "aggregation" and plan.aggregation_mult != 1
    return f"{note}, times the tuned {literal(plan.aggregation_mult)}" if is_tuned else note


def numbers_of(plan: Plan, group: Group) -> Numbers:
    """What the optimizer takes for a group. The notes are Powers, which for a hidden matrix are of its own sides."""
    values = group.values
    rule = plan.rule(values.role)
    is_tuned = values.part is not None or values.role in plan.lr_mult
    times_tuned = f", times the tuned {literal(values.lr_mult)}" if is_tuned else ""
    numbers = {"lr": (literal(values.lr), ascii_power(rule.lr) + times_tuned)}
    if values.eps is not None:
        numbers["eps"] = (literal(values.eps), ascii_power(rule.eps))
    over_tuned = f", over the tuned {literal(values.lr_mult)}" if is_tuned and plan.decay_by_multiplier else ""
    decay_note = ascii_power(1 / rule.lr) + over_tuned if values.weight_decay else ""
    numbers["weight_decay"] = (literal(values.weight_decay), decay_note)
    if plan.recipe.betas is not None:
        numbers["betas"] = (str(plan.recipe.betas), "")
    return numbers


def assignment_lines(form: str, numbers: Numbers) -> str:
    """Numbers as lines of the form, which has places for name and number, with their notes as comments.

    >>> print(assignment_lines("{}={},", {"lr": ("0.001", "N^-1"), "betas": ("(0.9, 0.95)", "")}))
    lr=0.001,  # N^-1
    betas=(0.9, 0.95),
    """
    lines = (form.format(name, text) + (f"  # {note}" if note else "") for name, (text, note) in numbers.items())
    return "\n".join(lines)


def pattern_lines(form: str, patterns: Iterable[str]) -> str:
    """Patterns as lines of the form, which has a place for each."""
    return "\n".join(map(form.format, patterns))


def ascii_power(factor: Factor | None) -> str:
    """A Power in ASCII; 0 for None."""
    return "0" if factor is None else factor.plain()


def label_of(group: Group) -> str:
    """A group in words: its role, with the part if the plan names it, and the input sides unless all are the width."""
    sides = list(dict.fromkeys(planned.parameter.fan_in for planned in group.members))
    role = group.values.role if group.values.part is None else f"{group.values.role} {group.values.part}"
    return role if sides == ["width"] else f"{role}, input side {', '.join(sides)}"


def _starts(plan: Plan, planned: Sequence[PlannedParameter], write_pattern: Callable[[str], str]) -> list[str]:
    """The lines of ``STARTS``, the table of how every parameter starts."""
    lines = [
        "# How parameters start: pattern, way, standard deviation, shape (None: any size; 'grows': a multiple of what",
        "# grows as the width does), and for 'own fan-in', whose number is a constant before fan_in^-1/2, that axis.",
        "STARTS = [",
    ]
    for row in planned:
        power = ascii_power(plan.rule(row.parameter.role).init_std)
        note = {
            "ones": "1",
            "zeros": "0",
            "normal": power,
            "own fan-in": "fan_in^-1/2, from the tensor",
            "tied": f"{power}, all experts equal",
        }[row.way]
        std = "1.0" if row.way == "ones" else literal(row.std)
        lines.append(f"    # {row.parameter.role}: {note}")
        lines.append(f"    ({write_pattern(row.parameter.pattern)}, {row.way!r}, {std}, {row.shape}, {row.in_axis}),")
    return [*lines, "]"]


def _head(plan: Plan, sizes: Sizes, host: str, instructions: Sequence[str]) -> list[str]:
    """Comments on top of the file: which plan it is, which sizes are assumed, what the user has to do."""
    from mssp._environment import __version__

    scheme = title(plan).replace("μ", "mu")
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
        *(f"  - {line}" for line in instructions),
        *(["", *(f"Warning: {warning}." for warning in plan.warnings)] if plan.warnings else []),
    ]
    lines: list[str] = []
    for fact in facts:
        indent = "    " if fact.startswith("  - ") else "  " if fact.startswith("  ") else ""
        # Newlines in a fact become spaces here, so that every line of the head is a comment.
        lines += textwrap.wrap(fact, _COLUMNS - 2, subsequent_indent=indent) or [""]
    return [f"# {line}".rstrip() for line in lines]


def _shape(shape: object) -> str:
    return repr(shape).removeprefix("Shape(").removesuffix(")").replace(",", "")


def fused_note(name: str) -> str:
    """A note on queries, keys and values in one matrix, for SGD, under which output sides count too."""
    return (
        f"{name} holds queries, keys and values in one matrix, and takes the learning rate that SGD has for queries, "
        "also where keys and values have fewer heads."
    )
