"""Plan files, which are JSON: everything needed to make the plan again, and the numbers that came out.

The numbers are for readers; loading makes the plan anew from its settings and refuses a file whose numbers differ.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib import resources
from typing import TYPE_CHECKING, Any

from mssp._constraints import shown
from mssp._documents import one_line, unique
from mssp.planning.arguments import BY_DEPTH, RELATIVE
from mssp.planning.recipe import Recipe
from mssp.planning.setting import ANY, I
from mssp.planning.shape import Shape
from mssp.planning.sides import Sides

if TYPE_CHECKING:
    from mssp.planning.plans import Plan

VERSION = 4
MISSING = object()
# Numbers are recomputed on load; another machine's pow() may differ in the last digits.
_TOLERANCE = 1e-9
_SETTINGS = (
    "scheme", "optimizer", "regime", "base", "target", "lr", "eps", "weight_decay", "readout", "as_printed",
    "grad_scale", "lr_mult", "init_mult", "init_std", "aggregation_mult", "recipe", "tuned_with",
)  # fmt: skip
# Settings that were added later, with their defaults. A file has one only where it differs, so that hashes stay.
_OPTIONS: dict[str, Any] = {
    "decay_by_multiplier": False, "decay_gains": False, "eps_rule": RELATIVE, "residual_rule": BY_DEPTH,
}  # fmt: skip
_LATER_SETTINGS: dict[str, Any] = {"rest_lr": None, "gates_sum_to_one": False, "sides": {}, **_OPTIONS}
_NUMBERS = ("aggregation", "residual", "kappa", "load_balance", "roles", "parts", "warnings", "version", "hash")


def dumps(plan: Plan) -> str:
    return json.dumps(document(plan), indent=2, ensure_ascii=False, allow_nan=False)


def document(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, in the order of the published schema."""
    entries = settings(plan)
    of_hidden = {part: {**values.json(), "power": _powers(plan, "hidden")} for part, values in plan.parts.items()}
    load_balance = plan.multiplier("load_balance", relative=True)
    return {
        **{name: entries.pop(name) for name in _SETTINGS[:8]},
        "aggregation": plan.multiplier("aggregation"),
        "residual": plan.multiplier("residual"),
        **entries,
        **({"kappa": plan.growth.kappa} if plan.growth is not None and plan.setting.regime is ANY else {}),
        **({"load_balance": load_balance} if plan.sides and load_balance != 1 else {}),
        "roles": {role: {**values.json(), "power": _powers(plan, role)} for role, values in plan.roles.items()},
        **({"parts": of_hidden} if of_hidden else {}),
        "warnings": list(plan.warnings),
        "version": _version(plan),
        "hash": plan.hash,
    }


def _version(plan: Plan) -> int:
    """The first version that has this plan. So the files and the hashes of plans stay what they were.

    Version 2 added growths that are none of the paper's, gates that sum to one, and routers of top-K that start small
    in Regime I, where version 1 started them at zero. Version 3 added the sides of matrices, for plans over configs.
    Version 4 added the parts of hidden, and the options of decay, of eps and of residual branches.
    """
    if plan.parts or any(getattr(plan, name) != default for name, default in _OPTIONS.items()):
        return 4
    if plan.sides:
        return 3
    is_of_one = plan.setting.regime is not ANY and plan.rule("router") == plan.setting.rule("router")
    return 1 if is_of_one and not plan.gates_sum_to_one else 2


def settings(plan: Plan) -> dict[str, Any]:
    """The arguments of ``plan()`` that the plan was made with, as plain data."""

    def plain(value: Any) -> Any:
        if isinstance(value, Recipe):
            return {**asdict(value), "betas": None if value.betas is None else list(value.betas)}
        if isinstance(value, Mapping):
            return {name: plain(entry) for name, entry in value.items()}
        return value.json() if isinstance(value, Shape | Sides) else value

    later = [name for name, default in _LATER_SETTINGS.items() if getattr(plan, name) != default]
    return {name: plain(getattr(plan, name)) for name in (*_SETTINGS, *later)}


def digest(plan: Plan) -> str:
    canonical = json.dumps({**settings(plan), "version": _version(plan)}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _powers(plan: Plan, role: str) -> dict[str, dict[str, str] | None]:
    rule = plan.rule(role)
    factors = {"init_std": rule.init_std, "lr": rule.lr, "eps": rule.eps}
    return {name: None if factor is None else rule.in_model_symbols(factor).json() for name, factor in factors.items()}


def loads(text: str | bytes, make: Callable[[Mapping[str, Any]], Plan]) -> Plan:
    """Read a plan file; ``make`` turns settings into a Plan. A file is refused in one line, whatever its keys are."""
    try:
        return _loads(text, make)
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None


def _loads(text: str | bytes, make: Callable[[Mapping[str, Any]], Plan]) -> Plan:
    try:
        data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=unique)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a plan file: {str(error) or 'nested too deeply'}") from None
    if not isinstance(data, dict) or not {"version", "scheme", "target"} <= data.keys():
        raise ValueError("not a plan file: expected what `mssp plan --json` writes")
    version = data["version"]
    if type(version) is not int or version < 1:
        raise ValueError(f"corrupt plan file: version must be a positive whole number, got {shown(version)}")
    if version > VERSION:
        raise ValueError(f"the plan file has version {version}, this mssp reads up to {VERSION}: upgrade mssp")
    missing = [name for name in (*_SETTINGS, "roles", "hash") if name not in data]
    if missing:
        raise ValueError(f"corrupt plan file: no {missing[0]!r}")
    unknown = [name for name in data if name not in (*_SETTINGS, *_LATER_SETTINGS, *_NUMBERS)]
    if unknown:
        raise ValueError(
            f"the plan file has {shown(unknown[0])}, which this mssp does not know: upgrade mssp, or plan again"
        )
    try:
        plan = make(_read_settings(data))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"corrupt plan file: {error}") from None
    if version < _version(plan) and plan.setting.regime is I:
        raise ValueError(
            f"the plan file has version {version}, in which routers of top-K started at zero in Regime I (router, "
            "init_std); they start small now: plan again"
        )
    if version != _version(plan):
        raise ValueError(f"corrupt plan file: version is {version}, its settings are of version {_version(plan)}")
    if plan.hash != data["hash"]:
        raise ValueError(f"corrupt plan file: its hash is {shown(data['hash'])}, its settings have {plan.hash!r}")
    recomputed = {**document(plan), "warnings": data.get("warnings")}  # words may change, numbers may not
    for path, _, _ in differences(data, recomputed, _agree):
        raise ValueError(f"corrupt plan file: {path} is not what its settings give")
    return plan


def _read_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: data[name] for name in (*_SETTINGS, *_LATER_SETTINGS) if name in data}
    for name in ("base", "target"):
        settings[name] = None if settings[name] is None else Shape(**settings[name])
    for name in ("recipe", "tuned_with"):
        entries = dict(settings[name])
        betas = entries.get("betas")
        settings[name] = Recipe(**{**entries, "betas": None if betas is None else tuple(betas)})
    return settings


def differences(
    here: Any, there: Any, same: Callable[[Any, Any], bool], path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """The entries in which two nested documents differ: the path and both values, ``MISSING`` where there is none."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in dict.fromkeys((*here, *there)):
            inner = f"{path}.{key}" if path else key
            yield from differences(here.get(key, MISSING), there.get(key, MISSING), same, inner)
    elif not same(here, there):
        yield path, here, there


def _agree(written: Any, recomputed: Any) -> bool:
    """Whether an entry of a file equals the recomputed one: numbers up to rounding, other things with their type."""
    if not (isinstance(recomputed, float) and type(written) in (int, float)):
        return type(written) is type(recomputed) and bool(written == recomputed)
    try:
        return math.isclose(written, recomputed, rel_tol=_TOLERANCE)
    except OverflowError:  # a whole number beyond any float
        return False


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number a plan can hold")


def schema() -> dict[str, Any]:
    """The JSON Schema of ``plan.json()``.

    >>> schema()["title"]
    'mssp plan'
    """
    text = resources.files("mssp.planning").joinpath("plan.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded
