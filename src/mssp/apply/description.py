"""Describes the parameters of a model: which role each of them has, and which sides.

A description comes from modules that describe themselves (``param_infos``), or from the user as name patterns and what
they stand for. Every trainable parameter is claimed exactly once, under each of its names. Nothing is guessed from a
shape or a name, and nothing is attached to a parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mssp._constraints import a_module, claims, optional, shown, takes
from mssp.apply.patterns import Pattern, matcher, starred
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
    patterns = [Pattern([name], info) for name, info in claimed_by_modules(model, clean).items()]
    # A user may write a pattern with or without the wrappers' names.
    patterns += [Pattern([text, clean(text)], claim) for text, claim in _checked(claims).items()]
    matching = matcher(patterns)
    described, complaints = [], []
    unclaimed: dict[tuple[str, tuple[int, ...], str], list[str]] = {}
    for names, parameter in trainable(model, clean):
        shape = tuple(parameter.shape)
        claimed = []
        for name in names:
            matches = matching(name)
            also = "" if name == names[0] else f" (the same parameter as {names[0]})"
            if not matches:
                unclaimed.setdefault((starred(name), shape, also), []).append(name)
            elif len(matches) > 1:
                listed = ", ".join(repr(pattern.text) for pattern in matches)
                complaints.append(f"{name} {shape}{also} is claimed more than once, by {listed}")
            else:
                claimed.append((name, matches[0]))
        if len(claimed) == len(names):
            infos = [pattern.info.fitted(name, shape, pattern.tied_as(name)) for name, pattern in claimed]
            described.append((_merged(infos), parameter))
    complaints = [*_said_of_unclaimed(unclaimed), *complaints]
    if complaints:
        raise ValueError(f"every trainable parameter needs exactly one role: {'; '.join(complaints)}")
    siblings = Counter(info.tied_as for info, _ in described if info.tied_as)
    return [
        (replace(info, experts=siblings[info.tied_as]) if info.tied_as else info, parameter)
        for info, parameter in described
    ]


def _said_of_unclaimed(unclaimed: Mapping[tuple[str, tuple[int, ...], str], list[str]]) -> Iterator[str]:
    """What an error says of parameters that nobody claims: many by one pattern, one by its name."""
    for (pattern, shape, also), names in unclaimed.items():
        several = f", {len(names)} parameters," if len(names) > 1 else ""
        yield f"{pattern if several else names[0]} {shape}{also}{several} is unclaimed"
    if unclaimed:
        yield "mssp.suggest_claims(model) drafts claims"


def trainable(model: nn.Module, clean: Callable[[str], str]) -> Iterator[tuple[list[str], nn.Parameter]]:
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


def claimed_by_modules(model: nn.Module, clean: Callable[[str], str]) -> dict[str, ParamInfo]:
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
    infos = plan.completed(info for info, _ in described)
    values = plan.resolve(infos)
    return [(info, parameter, values[info.name]) for info, (_, parameter) in zip(infos, described, strict=True)]


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
