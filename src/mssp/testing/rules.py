"""The contracts of an optimizer and of a scheme: complete rules that carry values there and back, and real updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch

from mssp.planning import setting as settings_module
from mssp.planning.plans import Plan, plan
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.rules import BIASES, GAINS, ROLES
from mssp.planning.setting import SCHEMES, Optimizer, Scheme, Setting
from mssp.planning.shape import Shape
from mssp.replicas import optimizers as updates
from mssp.replicas.program import Rates

# Three sizes, in which everything grows, by factors that no two dimensions share.
SMALL = Shape(width=64, expert_width=24, experts=8, active=4, depth=2, inputs=5)
MIDDLE = Shape(width=192, expert_width=48, experts=40, active=20, depth=14, inputs=5)
LARGE = Shape(width=2112, expert_width=624, experts=680, active=340, depth=266, inputs=5)
LR, EPS, DECAY, STD = 3e-3, 1e-7, 0.1, 0.02


class _RulesContract:
    """What holds for the rules of every setting."""

    def settings(self) -> Sequence[Setting]:
        raise NotImplementedError

    def _planned(self, setting: Setting, target: Shape, base: Shape, **options: Any) -> Plan:
        optimizer = setting.optimizer
        tuned: dict[str, Any] = {"lr": LR}
        tuned |= {"eps": EPS} if optimizer.default_eps is not None else {}
        tuned |= {"weight_decay": DECAY} if optimizer.decays else {}
        with without_plan_warnings():
            return plan(target, base, **setting.words(), **{**tuned, **options})

    def _extended(self, carried: Plan, target: Shape) -> Plan:
        with without_plan_warnings():
            return carried.extend(target)

    def test_every_role_has_a_rule(self) -> None:
        assert self.settings()
        for setting in self.settings():
            for role in ROLES:
                rule = setting.checked().rule(role)  # it refuses a role without a learning rate
                if setting.optimizer_of(role) is setting.optimizer:
                    assert (rule.eps is None) == (setting.optimizer.eps is None), (setting, role)

    def test_at_the_base_every_value_is_the_tuned_one(self) -> None:
        for setting in self.settings():
            at_base = self._planned(setting, MIDDLE, MIDDLE, init_std=STD)
            for role, values in at_base.roles.items():
                moved_by = setting.optimizer_of(role)
                assert values.lr == LR, (setting, role)
                assert values.eps == (EPS if moved_by.eps is not None else None), (setting, role)
                kept = 0.0 if role in GAINS | BIASES or not moved_by.decays else DECAY
                assert values.weight_decay == kept, (setting, role)
                assert values.init_std == (1.0 if role in GAINS else 0.0 if values.zero else STD), (setting, role)
            assert at_base.multiplier("aggregation", relative=True) == 1.0
            assert at_base.multiplier("residual", relative=True) == 1.0

    def test_two_steps_are_one(self) -> None:
        for setting in self.settings():
            halfway, direct = self._planned(setting, MIDDLE, SMALL), self._planned(setting, LARGE, SMALL)
            assert self._extended(halfway, LARGE) == direct, setting
            for role in ROLES:
                rebased = self._planned(setting, LARGE, MIDDLE, lr=halfway.roles[role].lr)
                assert math.isclose(rebased.roles[role].lr, direct.roles[role].lr, rel_tol=1e-12), (setting, role)

    def test_weight_decay_times_learning_rate_is_kept(self) -> None:
        for setting in self.settings():
            for role, values in self._planned(setting, LARGE, SMALL).roles.items():
                if values.weight_decay:
                    assert math.isclose(values.lr * values.weight_decay, LR * DECAY, rel_tol=1e-12), (setting, role)


def _with_rates(settings: Iterable[Setting]) -> list[Setting]:
    """The settings of the paper's regimes, and of those for any growth the ones whose rates are planned."""
    return [setting for setting in settings if setting.regime is not settings_module.ANY or setting.has_rates]


class SchemeContract(_RulesContract):
    """A scheme: its rules for every regime and optimizer that it is defined for."""

    scheme: Scheme

    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if self.scheme not in settings_module.SCHEMES:
            monkeypatch.setattr(settings_module, "SCHEMES", (*settings_module.SCHEMES, self.scheme))

    def settings(self) -> Sequence[Setting]:
        return _with_rates(
            Setting(scheme=self.scheme, regime=regime, optimizer=optimizer)
            for regime in self.scheme.regimes
            for optimizer in self.scheme.optimizers
        )

    def test_other_cells_are_refused(self) -> None:
        for regime in settings_module.REGIMES:
            for optimizer in settings_module.OPTIMIZERS:
                covered = self.scheme.regime_free or regime in self.scheme.regimes
                if not covered or optimizer not in self.scheme.optimizers:
                    with pytest.raises(ValueError, match=f"scheme '{self.scheme.name}' is defined for"):
                        Setting(scheme=self.scheme, regime=regime, optimizer=optimizer).checked()


class OptimizerContract(_RulesContract):
    """An optimizer: its rules under every scheme that has any, and its update of replicas.

    Attributes:
        optimizer: what rules know of it.
        torch_optimizer: the class whose steps replicas take, to the bit; None where replicas are not trained with it.
        schemes: those with rules for it.
    """

    optimizer: Optimizer
    torch_optimizer: type[Any] | None
    schemes: Sequence[Scheme] = SCHEMES

    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, parts in (("OPTIMIZERS", [self.optimizer]), ("SCHEMES", self.schemes)):
            known = getattr(settings_module, name)
            monkeypatch.setattr(settings_module, name, (*known, *(part for part in parts if part not in known)))

    def settings(self) -> Sequence[Setting]:
        return _with_rates(
            Setting(scheme=scheme, regime=regime, optimizer=self.optimizer)
            for scheme in self.schemes
            if self.optimizer in scheme.optimizers
            for regime in scheme.regimes
        )

    def test_replicas_move_as_the_class_of_torch_does(self) -> None:
        """Each with its own learning rate, eps, weight decay and gradient scale, for a few steps."""
        generator = torch.Generator().manual_seed(0)
        parameters = {
            name: torch.randn(len(_RATES), *shape, generator=generator)
            for name, shape in {"matrix": (37, 70), "experts": (3, 5, 2)}.items()
        }
        decay = 0.3 if self.optimizer.decays else 0.0
        columns = torch.tensor([(lr, eps, decay, scale) for lr, eps, scale in _RATES], dtype=torch.float64).T
        rates = dict.fromkeys(parameters, Rates(*columns))
        if self.torch_optimizer is None:
            with pytest.raises(ValueError, match=f"replicas have no update of {self.optimizer.title}"):
                updates.ReplicaOptimizer(self.optimizer, parameters, rates, (0.9, 0.999))
            return
        alone = {
            (name, replica): stack[replica].clone().requires_grad_()
            for name, stack in parameters.items()
            for replica in range(len(_RATES))
        }
        groups = [
            {"params": [tensor], "lr": _RATES[replica][0], "weight_decay": decay}
            | ({"eps": _RATES[replica][1]} if self.optimizer.eps is not None else {})
            for (_, replica), tensor in alone.items()
        ]
        reference = self.torch_optimizer(groups)
        optimizer = updates.ReplicaOptimizer(self.optimizer, parameters, rates, (0.9, 0.999))
        for _ in range(5):
            gradients = {name: torch.randn(stack.shape, generator=generator) for name, stack in parameters.items()}
            for (name, replica), tensor in alone.items():
                tensor.grad = gradients[name][replica] * _RATES[replica][2]
            optimizer.step(gradients, torch.ones(len(_RATES), dtype=torch.bool))
            reference.step()
        for (name, replica), tensor in alone.items():
            assert torch.equal(parameters[name][replica], tensor), (name, replica)


# Learning rate, eps and gradient scale of four replicas.
_RATES = ((0.03, 1e-8, 1.0), (0.07, 1e-3, 2.0), (0.011, 1.0, 1.0), (0.09, 1e-12, 0.5))
