"""Factors of the forward pass that entries of a config can hold: ``routed_scaling_factor``, ``residual_multiplier``.

Some families multiply by a number of their config what a plan multiplies. No name tells which number does exactly what
a factor does, and nothing else. So the model is built with each number changed, without weights, and is run with
stand-ins: all numbers in it, and the logits, must then be those of the model as it is, with the factor on outputs.

Where such numbers can hold all factors, checkpoints have them there, and compute the same without ``mssp``. The config
keeps what the numbers were, so that ``adapt`` and ``release`` give a model from a checkpoint its own ones back.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mssp.apply.description import name_cleaner
from mssp.hf.balancing import numbers_of_config, put, read
from mssp.hf.factors import factor_of, label_of
from mssp.hf.meta import numbers_with_factors, on_meta
from mssp.hf.rehearsal import Ran, Rehearsal, rehearsal
from mssp.planning.configs import REPLACED, STORED

_OTHER = 0.37  # a factor beside the plan's, at which a number must do the same
_PATTERNS = 3  # of stand-ins
_ROUNDING = 1e-4
_IN_PLAIN_CODE = "eager"  # the way of computing experts that needs no numbers in their stacks
_POWERS = (1, -1)  # some models divide by their number


@dataclass(frozen=True)
class ConfigFactors:
    """Entries of a config with the numbers to set there, and the modules whose factors these stand for."""

    entries: Mapping[str, float]
    modules: frozenset[nn.Module]

    @contextmanager
    def set_on(self, model: nn.Module) -> Iterator[None]:
        """For a while, the model's config has these numbers, and keeps what they were, if it keeps a plan."""
        before = {name: read(model.config, name) for name in self.entries}
        stored = vars(model.config).get(STORED)
        try:
            for name, value in self.entries.items():
                put(model.config, name, value)
            if stored is not None and before:
                stored[REPLACED] = {name: {"own": before[name], "planned": self.entries[name]} for name in before}
            yield
        finally:
            for name, value in before.items():
                put(model.config, name, value)
            if stored is not None:
                stored.pop(REPLACED, None)


FoundBefore = dict[tuple[Any, ...], ConfigFactors | None]  # by the factors and the numbers of a model's config


def all_in_config(model: nn.Module, before: FoundBefore) -> ConfigFactors | None:
    """The entries that can hold all factors of a model which keeps its plan; None where some must stay outside.

    Finding them takes seconds for a model of many layers, and training saves often: what was found ``before`` is used
    again for the same factors and numbers.
    """
    factors = {module: factor_of(module) for module in model.modules()}
    multiplied = {module for module, factor in factors.items() if factor != 1.0}
    if multiplied and STORED not in vars(model.config):
        return None
    state = (*factors.values(), *numbers_of_config(model.config))
    if state not in before:
        found = config_factors(model)
        before[state] = found if multiplied <= found.modules else None
    return before[state]


def config_factors(model: nn.Module) -> ConfigFactors:
    """The entries of a model's config that can hold factors of its modules. The model is not changed."""
    clean, found = name_cleaner(model), ConfigFactors({}, frozenset())
    modules = {clean(path): module for path, module in model.named_modules() if factor_of(module) != 1.0}
    factors = {path: factor_of(module) for path, module in modules.items()}
    groups: dict[tuple[str, float], list[str]] = {}
    for path, module in modules.items():
        groups.setdefault((label_of(module), factors[path]), []).append(path)
    if not groups or not any(True for _ in numbers_of_config(model.config)):
        return found
    try:
        with ExitStack() as stack:
            runs = _Runs(model, stack)
            entries: dict[str, float] = {}
            held: list[str] = []
            for (_, factor), paths in groups.items():
                entry = runs.entry_that_holds(paths, factor, [name for name in runs.numbers if name not in entries])
                if entry is not None:
                    entries.update([entry])
                    held += paths
            rest = {path: factor for path, factor in factors.items() if path not in held}
            if runs.agree(factors, entries, rest) and runs.can_undo(entries):  # all at once, too
                found = ConfigFactors(entries, frozenset(modules[path] for path in held))
    except ValueError:
        pass  # nothing is known of a model that cannot be built again or run, and weights take the factors
    return found


# -- models from checkpoints ------------------------------------------------------------------------------------------


@contextmanager
def own_numbers(model: nn.Module) -> Iterator[None]:
    """For a while, a model from a checkpoint has its own numbers, and not those that hold its plan's factors."""
    replaced = _replaced(model)
    try:
        for holder, name, own, _ in replaced:
            setattr(holder, name, own)
        yield
    finally:
        for holder, name, _, planned in replaced:
            setattr(holder, name, planned)


def restore_numbers(model: nn.Module) -> None:
    """Give a model from a checkpoint its own numbers back, unless somebody has set them since."""
    for holder, name, own, _ in _replaced(model):
        setattr(holder, name, own)


def leave_numbers(model: nn.Module) -> None:
    """Let a model from a checkpoint keep the numbers that hold its plan's factors when it is released."""
    stored = vars(model.config).get(STORED)
    if isinstance(stored, dict):
        stored.pop(REPLACED, None)


def _replaced(model: nn.Module) -> list[tuple[Any, str, float, float]]:
    """The numbers with factors of a plan, in a config and in the modules that have copied them when they were built.

    Each is given by what holds it, the name, what it is without the plan, and what it is now.
    """
    found = list(numbers_with_factors(model.config))
    if found:
        configs = copy.deepcopy(model.config), copy.deepcopy(model.config)
        for config, is_own in zip(configs, (True, False), strict=True):
            for part, name, own, planned in numbers_with_factors(config):
                setattr(part, name, own if is_own else planned)
        clean = name_cleaner(model)
        modules = {clean(path): module for path, module in model.named_modules()}
        differing = _differing(*(on_meta(config, like=model) for config in configs))
        found += [(modules[path], *rest) for path, *rest in differing if path in modules]
    return [each for each in found if getattr(each[0], each[1], None) == each[3]]


def _differing(one: nn.Module, other: nn.Module) -> list[tuple[str, str, float, float]]:
    """The numbers on modules in which two models differ: the path, the name, and both values."""
    return [
        (path, name, value, vars(partner)[name])
        for (path, module), partner in zip(one.named_modules(), other.modules(), strict=True)
        for name, value in vars(module).items()
        if type(value) is float and value != vars(partner)[name]
    ]


# -- finding them -----------------------------------------------------------------------------------------------------


class _Runs:
    """Runs of models that differ from one model in numbers of the config."""

    def __init__(self, model: nn.Module, stack: ExitStack) -> None:
        self._model = model
        self._own = stack.enter_context(self._changed({}))
        self._of_own: dict[tuple[tuple[tuple[str, float], ...], int], Ran] = {}
        self._unread: set[str] = set()
        self.numbers = dict(numbers_of_config(model.config))

    def entry_that_holds(self, paths: Sequence[str], factor: float, names: Sequence[str]) -> tuple[str, float] | None:
        """The entry that does what a factor on the outputs of some modules does, with the number that it takes."""
        other = dict.fromkeys(paths, _OTHER)
        if not set(paths) <= self._own.paths or self._run(other).is_close(self._run({}), _ROUNDING):
            return None
        for name in names:
            for power in () if self._is_unread(name) else _POWERS:
                number = self.numbers[name]
                if all(
                    self.agree(dict.fromkeys(paths, each), {name: number * each**power}) for each in (_OTHER, factor)
                ):
                    return name, number * factor**power
        return None

    def agree(
        self, factors: Mapping[str, float], entries: Mapping[str, float], rest: Mapping[str, float] | None = None
    ) -> bool:
        """Whether a model with other entries, and the rest of the factors, computes what the model's own factors do."""
        try:
            with self._changed(entries) as changed:
                return all(
                    changed.ran(rest or {}, pattern).is_close(self._run(factors, pattern), _ROUNDING)
                    for pattern in range(_PATTERNS)
                )
        except ValueError:  # it cannot be built or run with this number
            return False

    def can_undo(self, entries: Mapping[str, float]) -> bool:
        """Whether a model that was built with other entries is the old one when its numbers are put back."""
        try:
            with self._changed(entries) as changed:
                for path, name, own, _ in _differing(self._own.model, changed.model):
                    setattr(changed.model.get_submodule(path), name, own)
                for name in entries:
                    put(changed.model.config, name, self.numbers[name])
                return all(
                    changed.ran({}, pattern).is_close(self._run({}, pattern), _ROUNDING) for pattern in range(_PATTERNS)
                )
        except ValueError:
            return False

    def _is_unread(self, name: str) -> bool:
        """Whether an entry changes nothing in a run, which is so of most."""
        if name not in self._unread and self.agree({}, {name: self.numbers[name] * _OTHER}):
            self._unread.add(name)
        return name in self._unread

    def _run(self, factors: Mapping[str, float], pattern: int = 0) -> Ran:
        key = tuple(factors.items()), pattern
        if key not in self._of_own:
            self._of_own[key] = self._own.ran(factors, pattern)
        return self._of_own[key]

    @contextmanager
    def _changed(self, entries: Mapping[str, float]) -> Iterator[Rehearsal]:
        config: Any = copy.deepcopy(self._model.config)
        vars(config).pop(STORED, None)
        config._experts_implementation = _IN_PLAIN_CODE
        for name, value in entries.items():
            put(config, name, value)
        built = on_meta(config, like=self._model).eval()
        with rehearsal(built) as run, torch.no_grad():
            yield run
