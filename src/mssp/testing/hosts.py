"""The contract of a host: its file runs without mssp, and gives every parameter what the plan says, once."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import pytest

from mssp.hosts.registry import HOSTS, export
from mssp.planning.plans import Plan, plan
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.rules import GAINS, ROLES
from mssp.planning.setting import OPTIMIZERS, Optimizer
from mssp.planning.shape import Shape

# By parameter: learning rate, eps (None where the optimizer has none), weight decay.
Numbers: TypeAlias = "Mapping[str, tuple[float, float | None, float]]"
UNHEARD = "layers.0.unheard_of.weight"


class HostContract(ABC):
    """A host of exports: inherit it, and say what is below.

    Attributes:
        host: the module with ``NAME``, ``OPTIMIZERS``, ``VOCABULARY`` and ``write()``.
        parameters: names of a model of the target shape, each with its shape and its role; the matrices of role
            ``hidden`` among them have the width on their input side and on their output side.
        target, base: the shapes of the plan.
    """

    host: ModuleType
    parameters: Mapping[str, tuple[tuple[int, ...], str]]
    target = Shape(width=2048, expert_width=1024, experts=64, active=32, depth=16)
    base = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)

    @abstractmethod
    def groups(self, exported: SimpleNamespace, shapes: Mapping[str, tuple[int, ...]]) -> Numbers:
        """The numbers that the host's own code gives to parameters of these names and shapes.

        A name that no pattern finds is refused with a ValueError, or is not among them.
        """

    def start(self, exported: SimpleNamespace, name: str, shape: tuple[int, ...]) -> tuple[str, float]:
        """How a parameter starts, and its standard deviation; here as files have it that ``hosts/writing.py`` wrote."""
        way, std = exported._start(name, shape)
        return str(way), float(std)

    def exported(self, plan: Plan) -> SimpleNamespace:
        """The exported file, executed; a fixture of yours may put stand-ins for the host into ``sys.modules``."""
        namespace: dict[str, Any] = {"__name__": "exported"}
        exec(compile(export(plan, self._name), "exported.py", "exec"), namespace)
        return SimpleNamespace(**namespace)

    @property
    def _name(self) -> str:
        return next((name for name, host in HOSTS.items() if host is self.host), "host under test")

    def _plan(self, optimizer: Optimizer, **options: Any) -> Plan:
        decay: dict[str, Any] = {"weight_decay": 0.1} if optimizer.decays else {}
        with without_plan_warnings():
            return plan(self.target, self.base, optimizer=optimizer.name, lr=4e-3, **decay, **options)

    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(HOSTS, self._name, self.host)

    def test_the_file_needs_no_mssp(self) -> None:
        for optimizer in self.host.OPTIMIZERS:
            tree = ast.parse(export(self._plan(optimizer), self._name))
            imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
            names = {alias.name for node in imports for alias in node.names}
            names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
            assert "mssp" not in {name.partition(".")[0] for name in names}

    def test_its_vocabulary_speaks_of_roles(self) -> None:
        roles = {parameter.role for parameter in self.host.VOCABULARY}
        assert roles <= set(ROLES)
        assert {role for _, role in self.parameters.values()} <= roles
        patterns = [parameter.pattern for parameter in self.host.VOCABULARY]
        assert len(set(patterns)) == len(patterns)

    def test_every_parameter_gets_the_numbers_of_the_plan(self) -> None:
        for optimizer in self.host.OPTIMIZERS:
            plan = self._plan(optimizer)
            numbers = self.groups(self.exported(plan), self._shapes())
            assert set(numbers) == set(self.parameters)
            for name, (_, role) in self.parameters.items():
                values = plan.roles[role]
                lr, eps, decay = numbers[name]
                assert lr == pytest.approx(values.lr, rel=1e-11), name
                assert eps == (None if values.eps is None else pytest.approx(values.eps, rel=1e-11)), name
                assert decay == pytest.approx(values.weight_decay, rel=1e-11), name

    def test_every_parameter_starts_as_the_plan_says(self) -> None:
        plan = self._plan(self.host.OPTIMIZERS[-1], init_mult=0.5)
        exported = self.exported(plan)
        for name, (shape, role) in self.parameters.items():
            values = plan.roles[role]
            way = "ones" if role in GAINS else "zeros" if values.zero else "tied" if values.starts_equal else "normal"
            actual_way, std = self.start(exported, name, shape)
            assert actual_way == way, name
            if way in ("tied", "normal"):
                assert std == pytest.approx(values.init_std, rel=1e-11), name

    def test_an_unheard_name_is_refused(self) -> None:
        exported = self.exported(self._plan(self.host.OPTIMIZERS[0]))
        with pytest.raises(ValueError, match=UNHEARD):
            self.start(exported, UNHEARD, (self.target.width, self.target.width))
        self._not_found(exported, UNHEARD, (self.target.width, self.target.width))

    def test_patterns_take_names_literally(self) -> None:
        """A dot of a pattern is a dot, and a name that goes on is another name."""
        exported = self.exported(self._plan(self.host.OPTIMIZERS[0]))
        for name, (shape, _) in self.parameters.items():
            for other in (name.replace(".", "x"), f"{name}x"):
                if other not in self.parameters:
                    with pytest.raises(ValueError, match=other):
                        self.start(exported, other, shape)

    def test_what_it_cannot_do_is_refused(self) -> None:
        for optimizer in OPTIMIZERS:
            if optimizer not in self.host.OPTIMIZERS:
                with pytest.raises(ValueError, match=f"{self.host.NAME} does not take {optimizer}: plan with"):
                    export(self._plan(optimizer), self._name)

    def test_a_parameter_of_another_size_is_refused(self) -> None:
        exported = self.exported(self._plan(self.host.OPTIMIZERS[0]))
        name, (shape, _) = max(self.parameters.items(), key=lambda item: len(item[1][0]))
        with pytest.raises(ValueError, match=name):
            self.start(exported, name, tuple(size + 1 for size in shape))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, (shape, _) in self.parameters.items()}

    def _not_found(self, exported: SimpleNamespace, name: str, shape: tuple[int, ...]) -> None:
        try:
            numbers = self.groups(exported, {**self._shapes(), name: shape})
        except ValueError:
            return
        assert name not in numbers
