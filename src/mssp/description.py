"""What each parameter of a model is: its role, its two sides, its axes.

A description comes from modules that know themselves (``param_infos``) or from the user: name patterns and what they
stand for. Every trainable parameter is claimed exactly once; nothing is guessed from a shape or a name, and nothing is
attached to a parameter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mssp.rules import BIASES, GAINS, ROLES

if TYPE_CHECKING:
    from torch import Tensor, nn

# Parts that wrappers (compile, checkpointing, FSDP1) put into a name; DDP puts "module" in front.
_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
_AXES = re.compile(r"\((\d+) (in|out)\)|\((in|out) (\d+)\)|(in|out|vocab)")


@dataclass(frozen=True)
class ParamInfo:
    """One parameter, or what a name pattern stands for.

    Args:
        role: one of ``mssp.rules.ROLES``.
        fan_in, fan_out: the sides of one matrix; read off the axes where ``layout`` names them.
        expert_axis: the axis of a stacked tensor that runs over experts.
        layout: the other axes in order: ``"out in"`` (torch's Linear), ``"in out"``, ``"vocab out"`` (a lookup: its
            input is of order 1, so fan_in is 1), ``"(2 out) in"`` for gate and up in halves, ``"in (out 2)"``
            interleaved, ``"(3 out) in"`` for a fused qkv.
        base_fan_in, base_fan_out: the sides at the base, where they do not grow as the role's do (fixed ranks, heads).

    ``name``, ``experts``, ``tied_as`` and ``tied_readout`` are filled in by :func:`describe`.
    """

    role: str
    fan_in: int | None = None
    fan_out: int | None = None
    expert_axis: int | None = None
    layout: str | None = None
    name: str = ""
    base_fan_in: int | None = None
    base_fan_out: int | None = None
    experts: int | None = None
    tied_as: str = ""
    tied_readout: bool = False

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"unknown role {self.role!r}: use one of {', '.join(ROLES)}")
        if self.layout is not None:
            parse_layout(self.layout)


Claims = Mapping[str, "ParamInfo | str"]


@runtime_checkable
class DescribesItself(Protocol):
    """A module that knows the roles of its own parameters, by their local names."""

    def param_infos(self) -> Mapping[str, ParamInfo]: ...


def describe(model: nn.Module, claims: Claims | None = None) -> list[ParamInfo]:
    """Every trainable parameter of a model, by the fully qualified name it has without wrappers.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(12, 8, bias=False), nn.Linear(8, 3, bias=False))
    >>> infos = describe(model, {"0.weight": ParamInfo("embedding", layout="out in"),
    ...                          "1.weight": ParamInfo("readout", layout="out in")})
    >>> [(info.name, info.role, info.fan_in, info.fan_out) for info in infos]
    [('0.weight', 'embedding', 12, 8), ('1.weight', 'readout', 8, 3)]

    ``claims`` maps name patterns to a ParamInfo, or to a role alone for gains and biases. In a pattern ``*`` stands for
    anything and ``{expert}`` for the number of an expert that is a module of its own.
    """
    found = _claimed_by_modules(model)
    found += [(clean_name(pattern), claim) for pattern, claim in (claims or {}).items()]
    matchers = [(_regex(pattern), pattern, ParamInfo(c) if isinstance(c, str) else c) for pattern, c in found]
    infos, complaints = [], []
    for names, parameter in trainable(model):
        matches = {name: [m for m in matchers if m[0].fullmatch(name)] for name in names}
        claimed = [(name, match) for name, several in matches.items() for match in several]
        if not claimed:
            complaints.append(f"{names[0]} {tuple(parameter.shape)} is unclaimed")
        elif any(len(several) > 1 for several in matches.values()):
            patterns = ", ".join(repr(pattern) for _, (_, pattern, _) in claimed)
            complaints.append(f"{names[0]} {tuple(parameter.shape)} is claimed more than once, by {patterns}")
        else:
            infos.append(_merged([_filled(name, parameter, *match) for name, match in claimed]))
    if complaints:
        raise ValueError(f"every trainable parameter needs exactly one role: {'; '.join(complaints)}")
    siblings = Counter(info.tied_as for info in infos if info.tied_as)
    return [replace(info, experts=siblings[info.tied_as]) if info.tied_as else info for info in infos]


def trainable(model: nn.Module) -> Iterator[tuple[list[str], nn.Parameter]]:
    """The trainable parameters with all the clean names each of them has (two for tied embeddings)."""
    names: dict[int, list[str]] = {}
    parameters: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            parameters[id(parameter)] = parameter
            names.setdefault(id(parameter), []).append(clean_name(name))
    for key, parameter in parameters.items():
        yield list(dict.fromkeys(names[key])), parameter


def clean_name(name: str) -> str:
    """A parameter's name without what DDP, FSDP, compile and checkpointing add.

    >>> clean_name("module._orig_mod.blocks.0._checkpoint_wrapped_module.norm.weight")
    'blocks.0.norm.weight'
    """
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def parse_layout(layout: str) -> list[tuple[str, int]]:
    """The axes of a layout: which side each is, and how many matrices lie along it.

    >>> parse_layout("(2 out) in")
    [('out', 2), ('in', 1)]
    """
    axes = []
    for part in re.findall(r"\([^)]*\)|\S+", layout):
        match = _AXES.fullmatch(part)
        if match is None:
            raise ValueError(f"layout {layout!r}: {part!r} is not an axis; use in, out, vocab, (2 out) or (out 2)")
        count, side, other_side, other_count, plain = match.groups()
        axes.append((side or other_side or plain, int(count or other_count or 1)))
    return axes


def _claimed_by_modules(model: nn.Module) -> list[tuple[str, ParamInfo | str]]:
    found: dict[str, ParamInfo | str] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, DescribesItself):
            for local, info in module.param_infos().items():
                found[clean_name(f"{prefix}.{local}" if prefix else local)] = info
    return list(found.items())


def _regex(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".").replace(r"\{expert\}", r"(?P<expert>\d+)")
    return re.compile(escaped)


def _filled(name: str, parameter: Tensor, regex: re.Pattern[str], pattern: str, claim: ParamInfo) -> ParamInfo:
    """The claim with what the tensor's own axes say."""
    shape = list(parameter.shape)
    experts = None
    if claim.expert_axis is not None:
        if not -len(shape) <= claim.expert_axis < len(shape):
            raise ValueError(f"{name} {tuple(shape)} has no axis {claim.expert_axis} for experts")
        experts = shape.pop(claim.expert_axis)
    match = regex.fullmatch(name)
    tied_as = ""
    if match and "expert" in match.groupdict():
        tied_as = name[: match.start("expert")] + "{expert}" + name[match.end("expert") :]
    fan_in, fan_out = _sides(name, shape, claim)
    return replace(claim, name=name, fan_in=fan_in, fan_out=fan_out, experts=experts, tied_as=tied_as)


def _sides(name: str, shape: list[int], claim: ParamInfo) -> tuple[int | None, int | None]:
    """fan_in and fan_out: as the layout names the axes, or as given."""
    if claim.layout is None:
        if claim.role not in GAINS | BIASES and None in (claim.fan_in, claim.fan_out):
            raise ValueError(f"{name} {tuple(shape)}: say its layout (such as 'out in'), or fan_in and fan_out")
        return claim.fan_in, claim.fan_out
    axes = parse_layout(claim.layout)
    if len(axes) != len(shape):
        raise ValueError(f"{name}: layout {claim.layout!r} names {len(axes)} axes, the tensor has {tuple(shape)}")
    sides: dict[str, int | None] = {"fan_in": claim.fan_in, "fan_out": claim.fan_out}
    for (side, count), size in zip(axes, shape, strict=True):
        if size % count:
            raise ValueError(f"{name}: layout {claim.layout!r} splits an axis of {size} into {count} parts")
        own = 1 if side == "vocab" else size // count
        key = "fan_out" if side == "out" else "fan_in"
        given = sides[key]
        if given not in (None, own):
            raise ValueError(f"{name}: {key} is given as {given}, but its layout {claim.layout!r} says {own}")
        sides[key] = own
    return sides["fan_in"], sides["fan_out"]


def _merged(infos: list[ParamInfo]) -> ParamInfo:
    """One description for a parameter that goes by several names."""
    roles = {info.role for info in infos}
    if roles == {"embedding", "readout"}:
        # The lookup decides how the shared matrix starts and moves; as readout it needs a multiplier on the logits.
        return replace(next(info for info in infos if info.role == "embedding"), tied_readout=True)
    if len(roles) > 1:
        names = ", ".join(f"{info.name} as {info.role}" for info in infos)
        raise ValueError(f"one parameter has two roles: {names}")
    return infos[0]
