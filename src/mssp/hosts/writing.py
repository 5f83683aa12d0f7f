"""The parts that all exports are written from: numbers with their Powers, the head, the table, the common functions.

What is written depends on torch and the host alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from mssp.hosts.rows import Group, Row, Sizes
from mssp.planning.rules import BIASES, GAINS

if TYPE_CHECKING:
    from mssp.planning.plans import Plan
    from mssp.planning.power import Factor

_COLUMNS = 120


def literal(value: float) -> str:
    """A number as Python source, to twelve digits.

    >>> literal(0.0005), literal(1.0), literal(1.5625e-10)
    ('0.0005', '1.0', '1.5625e-10')
    """
    text = f"{value:.12g}"
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def plain(factor: Factor | None) -> str:
    return "0" if factor is None else factor.plain()


def powers(plan: Plan, group: Group) -> dict[str, str]:
    """The Powers behind a group's numbers; those of a hidden matrix speak of its own sides."""
    rule = plan.rule(group.role)
    tuned = plan.lr_mult.get(group.role)
    return {
        "lr": plain(rule.lr) + ("" if tuned is None else f", times the tuned {literal(tuned)}"),
        "eps": plain(rule.eps),
        "weight_decay": "0 for gains and biases" if group.role in GAINS | BIASES else plain(1 / rule.lr),
    }


def factor(plan: Plan, which: Literal["aggregation", "residual"]) -> str:
    """The Power behind a factor of the forward pass, and what it is relative to."""
    power = {"aggregation": "K^-1", "residual": "L^-1"}[which]
    if not plan.setting.scheme.averages:
        power = f"1 in {plan.setting.scheme.title}"
    elif plan.base is not None:
        power = f"relative to the base: {power}"
    tuned = which == "aggregation" and plan.aggregation_mult != 1
    return f"{power}, times the tuned {literal(plan.aggregation_mult)}" if tuned else power


def fused(name: str) -> str:
    """What is said of queries, keys and values in one matrix under SGD, where output sides count too."""
    return (
        f"{name} holds queries, keys and values in one matrix, and takes the learning rate that SGD has for queries, "
        "also where keys and values have fewer heads."
    )


def label(group: Group) -> str:
    """A group in words: its role, and the input sides where they are not all the width."""
    sides = list(dict.fromkeys(row.parameter.fan_in for row in group.rows))
    return group.role if sides == ["width"] else f"{group.role}, input side {', '.join(sides)}"


def start(plan: Plan, row: Row) -> str:
    """In words how a row's parameters start."""
    power = plain(plan.rule(row.parameter.role).init_std)
    return {
        "ones": "1",
        "zeros": "0",
        "normal": power,
        "own fan-in": "fan_in^-1/2, from the tensor",
        "tied": f"{power}, all experts equal",
    }[row.how]


def comment(text: str, indent: str = "") -> list[str]:
    """Text as comment lines."""
    return textwrap.wrap(text, _COLUMNS, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ")


def head(plan: Plan, sizes: Sizes, host: str, by_hand: Sequence[str]) -> list[str]:
    """What stands on top of the file."""
    from mssp._environment import __version__

    regime = f"Regime {plan.regime}, " if plan.regime else ""
    scheme = f"{plan.setting.scheme.title}, {regime}{plan.setting.optimizer.title}".replace("μ", "mu")
    grown = (
        f"base {_shape(plan.base)} -> target {_shape(plan.target)}" if plan.base else f"target {_shape(plan.target)}"
    )
    betas = "the plan has none: the host's own" if plan.recipe.betas is None else f"{plan.recipe.betas}"
    tuned = f"tuned: lr {literal(plan.lr)}"
    tuned += f", eps {literal(plan.eps)}" if plan.eps is not None else ""
    tuned += f", weight decay {literal(plan.weight_decay)}" if plan.weight_decay else ""
    facts = [
        f"{scheme}; plan {plan.hash}, written by mssp {__version__} for {host}.",
        f"{grown}; {tuned}.",
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
        lines += textwrap.wrap(fact, _COLUMNS - 2, subsequent_indent=bullet) or [""]
    return [f"# {line}".rstrip() for line in lines]


def _shape(shape: object) -> str:
    return repr(shape).removeprefix("Shape(").removesuffix(")").replace(",", "")


def table(plan: Plan, rows: Sequence[Row], patterns: Sequence[str]) -> list[str]:
    """How every parameter starts: pattern, how, std, the shape it must have, and the axis of its own input side."""
    lines = [
        "# How parameters start: pattern, way, standard deviation, shape (None: any size; 'grows': a multiple of what",
        "# grows as the width does), and for 'own fan-in', whose number is a constant before fan_in^-1/2, that axis.",
        "STARTS = [",
    ]
    for row, pattern in zip(rows, patterns, strict=True):
        shape = ", ".join(repr(axis) for axis in row.shape) + ("," if len(row.shape) == 1 else "")
        number = "1.0" if row.how == "ones" else literal(row.std)
        line = f"    ({pattern}, {row.how!r}, {number}, ({shape}), {row.in_axis}),"
        note = f"{row.parameter.role}: {start(plan, row)}"
        lines += [f"    # {note}", line]
    return [*lines, "]"]


def sizes_of_plan(plan: Plan) -> list[str]:
    """The constants that checks of shapes speak of."""
    base = plan.base
    proportion = base is not None and plan.target.expert_width * base.width == base.expert_width * plan.target.width
    grows = [plan.target.width, *([plan.target.expert_width] if proportion else [])]
    return [
        f"EXPERTS = {plan.target.experts}",
        f"GROW = {tuple(grows)}  # a side that is a multiple of one of these grows as the width does",
        "SEED = 0",
    ]


# Functions of the generated file: finding a parameter's line, and the standard deviation it gets.
FIND = '''
def _start(name, shape):
    """How the parameter of this name and whole shape starts: way and standard deviation."""
    found = [line for line in STARTS if _matches(line[0], name)]
    if len(found) != 1:
        raise ValueError(
            f"{name} {tuple(shape)} matches {len(found)} patterns of this export, not one: it has no role, or its size "
            "has to be said to `mssp export` (--target.kv-rank and the like)"
        )
    pattern, way, std, wanted, in_axis = found[0]
    fits = len(shape) == len(wanted) and all(_fits(size, axis) for size, axis in zip(shape, wanted))
    if not fits:
        raise ValueError(
            f"{name} has shape {tuple(shape)}, this export is for {wanted}: it was made for another model, or the "
            f"size has to be said to `mssp export` (--target.attention-width and the like)"
        )
    return ("normal", std * shape[in_axis] ** -0.5) if way == "own fan-in" else (way, std)


def _fits(size, wanted):
    if wanted == "grows":
        return any(size % step == 0 for step in GROW)
    return wanted is None or size == wanted


def _draw(name, shape):
    """Standard normals that depend on the seed and the name alone, so that every rank draws the same."""
    key = hashlib.sha256(f"{SEED}/{name}".encode()).digest()
    return torch.randn(shape, generator=torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1))
'''.strip("\n")

# For hosts whose models may be wrapped by the time they are planned, and have no `module` of their own in front.
CLEAN = '''
def _clean(name):
    """The name without what compile, checkpointing, FSDP and DDP put into it, whichever is outermost."""
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."):
        name = name.replace(wrapper, "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name
'''.strip("\n")
