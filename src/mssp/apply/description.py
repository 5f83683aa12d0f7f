"""Describes the parameters of a model: which role each of them has, and which sides.

A description comes from modules that describe themselves (``param_infos``), or from the user as name patterns and what
they stand for. Every trainable parameter is claimed exactly once, under each of its names. Nothing is guessed from a
shape or a name, and nothing is attached to a parameter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mssp._constraints import a_module, claims, optional, shown, takes
from mssp.apply.protocols import DescribesItself, Multiplies
from mssp.planning.parameter import ParamInfo

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mssp.planning.plans import Plan, Values

Claims = Mapping[str, ParamInfo | str]
# Parts that wrappers (compile, checkpointing, FSDP1) put into a name. DDP puts "module" in front of every name.
_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
_IN_FRONT = "module"


@takes(model=a_module, claims=optional(claims))
def describe(model: nn.Module, claims: Claims | None = None) -> list[ParamInfo]:
    """Every trainable parameter of a model, by the fully qualified name it has without wrappers.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(12, 8, bias=False), nn.Linear(8, 3, bias=False))
    >>> infos = describe(model, {"0.weight": ParamInfo("embedding", layout="out in"),
    ...                          "1.weight": ParamInfo("readout", layout="out in")})
    >>> [(info.name, info.role, info.fan_in, info.fan_out) for info in infos]
    [('0.weight', 'embedding', 12, 8), ('1.weight', 'readout', 8, 3)]

    ``claims`` maps name patterns to a ParamInfo, or to a role alone for gains and biases. In a pattern ``*`` stands for
    anything, ``?`` for one character and ``{expert}`` for the number of an expert that is a parameter of its own.
    """
    return [info for info, _ in described_parameters(model, claims)]


def described_parameters(model: nn.Module, claims: Claims | None = None) -> list[tuple[ParamInfo, nn.Parameter]]:
    """Every trainable parameter of a model with its description."""
    clean = name_cleaner(model)
    patterns = [_Pattern([name], info) for name, info in _claimed_by_modules(model, clean).items()]
    # A user may write a pattern with or without the wrappers' names.
    patterns += [_Pattern([text, clean(text)], claim) for text, claim in _checked(claims).items()]
    matching = _matcher(patterns)
    described, complaints = [], []
    for names, parameter in _trainable(model, clean):
        shape = tuple(parameter.shape)
        claimed = []
        for name in names:
            matches = matching(name)
            also = "" if name == names[0] else f" (the same parameter as {names[0]})"
            if not matches:
                complaints.append(f"{name} {shape}{also} is unclaimed")
            elif len(matches) > 1:
                listed = ", ".join(repr(pattern.text) for pattern in matches)
                complaints.append(f"{name} {shape}{also} is claimed more than once, by {listed}")
            else:
                claimed.append((name, matches[0]))
        if len(claimed) == len(names):
            infos = [pattern.info.fitted(name, shape, pattern.tied_as(name)) for name, pattern in claimed]
            described.append((_merged(infos), parameter))
    if complaints:
        raise ValueError(f"every trainable parameter needs exactly one role: {'; '.join(complaints)}")
    siblings = Counter(info.tied_as for info, _ in described if info.tied_as)
    return [
        (replace(info, experts=siblings[info.tied_as]) if info.tied_as else info, parameter)
        for info, parameter in described
    ]


def _trainable(model: nn.Module, clean: Callable[[str], str]) -> Iterator[tuple[list[str], nn.Parameter]]:
    """The trainable parameters, each with all of its clean names (two for tied embeddings)."""
    from torch.nn.parameter import is_lazy

    names: dict[nn.Parameter, list[str]] = {}
    owner: dict[str, nn.Parameter] = {}
    for raw, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            continue
        name = clean(raw)
        if is_lazy(parameter):
            raise ValueError(f"{name} has no shape yet: run the model once before describing it")
        if owner.setdefault(name, parameter) is not parameter:
            raise ValueError(f"two parameters are called {name} once wrappers' names are taken off")
        names.setdefault(parameter, []).append(name)
    for parameter, of_parameter in names.items():
        yield list(dict.fromkeys(of_parameter)), parameter


def name_cleaner(model: nn.Module) -> Callable[[str], str]:
    """A function that takes off what DDP, FSDP, compile and checkpointing add to this model's names.

    >>> from torch import nn
    >>> wrapped = nn.ModuleDict({"module": nn.ModuleDict({"_orig_mod": nn.Linear(2, 2)})})
    >>> name_cleaner(wrapped)("module._orig_mod.weight")
    'weight'
    """

    def in_front_of_all(at: int) -> bool:  # without wrappers, the first name is enough to tell
        split = (_without_wrappers(name) for name, _ in model.named_parameters(remove_duplicate=False))
        return all(len(parts) > at + 1 and parts[at] == _IN_FRONT for parts in split)

    in_front = 0
    while any(True for _ in model.parameters()) and in_front_of_all(in_front):
        in_front += 1

    def clean(name: str) -> str:
        parts = _without_wrappers(name)
        for _ in range(in_front):
            parts = parts[1:] if len(parts) > 1 and parts[0] == _IN_FRONT else parts
        return ".".join(parts)

    return clean


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without wrappers: DDP would wait in vain for a probe's gradients, and compiled code runs past hooks."""
    from torch.nn.parallel import DistributedDataParallel

    inner = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", model)
    return model if inner is model else unwrapped(inner)


def _without_wrappers(name: str) -> list[str]:
    return [part for part in name.split(".") if part not in _WRAPPERS]


# All digits of the number: "*{expert}" must not split 12 into 1 and 2.
_NUMBER = r"(?P<expert>(?<!\d)\d+(?!\d))"
_WILDCARD = re.compile(r"\*|\?|\{expert\}")


class _Pattern:
    """A name pattern and what it stands for. Its spellings are ``exact`` names, or have wildcards and are regexes."""

    def __init__(self, spellings: list[str], claim: ParamInfo | str) -> None:
        self.text = spellings[0]
        self.info = ParamInfo(claim) if isinstance(claim, str) else claim
        if self.text.count("{expert}") > 1:
            raise ValueError(f"pattern {self.text!r} names {{expert}} more than once")
        self.exact = {spelling for spelling in spellings if not _WILDCARD.search(spelling)}
        self.regexes = [_regex(spelling) for spelling in dict.fromkeys(spellings) if spelling not in self.exact]

    def match(self, name: str) -> re.Match[str] | None:
        """How a name matches a spelling with wildcards."""
        return next((match for regex in self.regexes if (match := regex.fullmatch(name))), None)

    def tied_as(self, name: str) -> str:
        match = self.match(name)
        if match is None or "expert" not in match.groupdict():
            return self.info.tied_as
        return name[: match.start("expert")] + "{expert}" + name[match.end("expert") :]


def _regex(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", ".").replace(r"\{expert\}", _NUMBER))


def _matcher(patterns: Sequence[_Pattern]) -> Callable[[str], list[_Pattern]]:
    """A function that lists the patterns that match a name, in their order."""
    exact: dict[str, list[int]] = {}  # looked up, since a model has thousands of names
    for index, pattern in enumerate(patterns):
        for spelling in pattern.exact:
            exact.setdefault(spelling, []).append(index)
    with_wildcards = [index for index, pattern in enumerate(patterns) if pattern.regexes]

    def matching(name: str) -> list[_Pattern]:
        matches = {index for index in with_wildcards if patterns[index].match(name)}
        return [patterns[index] for index in sorted(matches.union(exact.get(name, ())))]

    return matching


def _checked(claims: Claims | None) -> Claims:
    if claims is None:
        return {}
    if not isinstance(claims, Mapping):
        raise ValueError(f"claims must map name patterns to ParamInfo or a role, got a {type(claims).__name__}")
    for pattern, claim in claims.items():
        if not isinstance(pattern, str) or not isinstance(claim, ParamInfo | str):
            raise ValueError(
                f"claims must map name patterns to ParamInfo or a role, got {shown(pattern)}: {shown(claim)}"
            )
    return claims


def _claimed_by_modules(model: nn.Module, clean: Callable[[str], str]) -> dict[str, ParamInfo]:
    claims: dict[str, ParamInfo] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        if hasattr(module, "param_infos") and isinstance(module, DescribesItself):  # protocols are slow to say no
            for local, info in module.param_infos().items():
                name = clean(f"{prefix}.{local}" if prefix else local)
                # A wrapper that forwards attributes says the same as the module inside it.
                if claims.setdefault(name, info) != info:
                    raise ValueError(f"two modules describe {name}: as {claims[name].role} and as {info.role}")
    return claims


def _merged(infos: list[ParamInfo]) -> ParamInfo:
    """One description for a parameter that has several names."""
    roles = {info.role for info in infos}
    if roles == {"embedding", "readout"}:
        # The shared matrix starts and moves as an embedding does; as a readout it needs a multiplier on the logits.
        return replace(next(info for info in infos if info.role == "embedding"), tied_readout=True)
    if len(roles) > 1:
        names = ", ".join(f"{info.name} as {info.role}" for info in infos)
        raise ValueError(f"one parameter has two roles: {names}")
    return infos[0]


def planned_parameters(model: nn.Module, plan: Plan, claims: Claims | None) -> list[tuple[ParamInfo, Tensor, Values]]:
    """Every trainable parameter of a model with its description and the plan's numbers."""
    described = described_parameters(model, claims)
    values = plan.resolve(info for info, _ in described)
    return [(info, parameter, values[info.name]) for info, parameter in described]


def planned_multipliers(model: nn.Module, plan: Plan) -> Iterator[tuple[object, str, str, float]]:
    """Every factor of the forward pass that the plan sets: the module, its path, the attribute's name, the value."""
    clean = name_cleaner(model)
    for path, module in model.named_modules():
        if hasattr(module, "plan_multipliers") and isinstance(module, Multiplies):
            prefix = clean(path)
            for name, factor in module.plan_multipliers(plan).items():
                yield module, f"{prefix}." if prefix else "", name, factor


def multipliers_of(model: nn.Module, plan: Plan) -> dict[str, float]:
    """The factors of the forward pass that :func:`mssp.initialize` sets, by the paths of their attributes."""
    return {f"{path}{name}": factor for _, path, name, factor in planned_multipliers(model, plan)}
