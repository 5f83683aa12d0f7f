"""What the tests of exports share: stand-ins for hosts, models with a host's real parameter names, and a plan.

The stand-ins have the signatures of torchtitan 0.3.0, ai2-olmo-core 3.0.0 and megatron-core 0.16.1, and group
parameters as those do; the real frameworks are not installed for tests.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import mssp
from mssp.hosts import Sizes, export

NAMES = Path(__file__).parent / "parameter_names"
BASE = mssp.Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
TARGET = mssp.Shape(width=2048, expert_width=1024, experts=64, active=32, depth=16)


def listed(host: str) -> dict[str, Any]:
    """Models of a host: target, sizes, and parameters with their shapes."""
    models: dict[str, Any] = json.loads((NAMES / f"{host}.json").read_text(encoding="utf-8"))["models"]
    return models


def model_of(parameters: Mapping[str, Sequence[int]], device: str = "meta") -> nn.Module:
    """A tree of modules with these parameters."""
    root = nn.Module()
    for name, shape in parameters.items():
        *path, local = name.split(".")
        module = root
        for part in path:
            if part not in dict(module.named_children()):
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(local, nn.Parameter(torch.empty(tuple(shape), device=device)))
    return root


def plan_for(target: Mapping[str, int], halved: bool = True, **options: Any) -> mssp.Plan:
    """A plan to this target from a base of half its width, experts and expert width."""
    shape = mssp.Shape(**target)
    odd = target["active"] % 2 == 1  # then the experts stay as they are: their active share must not change
    kept = {"depth", "experts", "active"} if odd else {"depth"}
    half = {name: size if name in kept else size // 2 for name, size in target.items()}
    base = mssp.Shape(**half) if halved else None
    grown = {"regime": "I", "scheme": "mup"} if odd else {"regime": "III"}
    return mssp.plan(shape, base, **{"lr": 4e-3, "weight_decay": 0.1, **grown, **options})


@dataclass
class ParamGroupConfig:
    pattern: str
    optimizer_name: str
    optimizer_kwargs: dict[str, Any] = field(default_factory=dict)


class OptimizersContainer:
    """torchtitan's grouping: the first pattern found in a name wins, and one that finds nothing is an error."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        param_groups: list[ParamGroupConfig] = field(default_factory=list)
        _owner: ClassVar[Any] = None

    @staticmethod
    def _build_param_groups(
        model: nn.Module, param_group_configs: list[ParamGroupConfig], impl_kwargs: dict[str, Any]
    ) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[str]]]:
        groups: dict[str, list[dict[str, Any]]] = {}
        claimed: set[str] = set()
        for config in param_group_configs:
            found = {
                name: parameter
                for name, parameter in model.named_parameters()
                if name not in claimed and re.search(config.pattern, name)
            }
            if not found:
                raise ValueError(f"pattern {config.pattern} matched no parameters")
            claimed |= set(found)
            group = {"params": list(found.values()), "param_names": list(found), **config.optimizer_kwargs}
            groups.setdefault(config.optimizer_name, []).append(group)
        return groups, {}


class MoE(nn.Module):
    """The part of torchtitan's MoE that an export touches."""

    def __init__(self, score_func: str, route_norm: bool) -> None:
        super().__init__()
        self.router = nn.Module()
        self.router.score_func, self.router.route_norm, self.router.route_scale = score_func, route_norm, 2.0  # type: ignore[assignment]


@dataclass
class OptimGroupOverride:
    params: list[str]
    opts: dict[str, Any]


@dataclass(frozen=True)
class ParamKey:
    name: tuple[str, ...] = ()

    def matches(self, parameter: nn.Parameter, name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in self.name)


def stand_ins() -> dict[str, ModuleType]:
    ranks = {
        f"get_{kind}_{what}": lambda value=value: value
        for kind in ("expert_tensor_parallel", "tensor_model_parallel", "expert_model_parallel")
        for what, value in (("world_size", 1), ("rank", 0))
    }
    contents: dict[str, dict[str, Any]] = {
        "torchtitan.components.optimizer": {
            "OptimizersContainer": OptimizersContainer,
            "ParamGroupConfig": ParamGroupConfig,
        },
        "torchtitan.models.common.moe": {"MoE": MoE},
        "olmo_core.optim": {"OptimGroupOverride": OptimGroupOverride},
        "megatron.core": {"parallel_state": SimpleNamespace(**ranks)},
        "megatron.core.optimizer": {"ParamKey": ParamKey},
        "megatron.core.optimizer_param_scheduler": {"ParamGroupOverride": dict},
    }
    made: dict[str, ModuleType] = {}
    for name, attributes in contents.items():
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
        vars(made[name]).update(attributes)
    return made


def load(
    monkeypatch: pytest.MonkeyPatch, plan: mssp.Plan, host: str, sizes: Sizes | None = None, **options: Any
) -> SimpleNamespace:
    """The exported file, executed, with stand-ins where it imports a host."""
    for name, module in stand_ins().items():
        monkeypatch.setitem(sys.modules, name, module)
    scope: dict[str, Any] = {"__name__": f"planned_for_{host.replace('-', '_')}"}
    namespace = ModuleType(scope["__name__"])
    monkeypatch.setitem(sys.modules, scope["__name__"], namespace)  # dataclasses look their module up
    exec(compile(export(plan, host, sizes, **options), "exported.py", "exec"), vars(namespace))
    return SimpleNamespace(**vars(namespace))
