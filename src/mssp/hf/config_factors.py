"""Factors of the forward pass that entries of a config can hold: ``routed_scaling_factor``, ``residual_multiplier``.

Some families multiply by a number of their config what a plan multiplies. No name tells which number does exactly what
a factor does, and nothing else. So the model is built with each number changed, without weights, and is run with
stand-ins: all numbers in it, and the logits, must then be those of the model as it is, with the factor on outputs.
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
from mssp.hf.meta import STORED, on_meta
from mssp.hf.rehearsal import Ran, Rehearsal, rehearsal
from mssp.hf.stand_ins import NotRunnableError

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
        """For a while, the model's config has these numbers."""
        before = {name: read(model, name) for name in self.entries}
        try:
            for name, value in self.entries.items():
                put(model, name, value)
            yield
        finally:
            for name, value in before.items():
                put(model, name, value)


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
            if runs.agree(factors, entries, rest):  # all at once, too
                found = ConfigFactors(
                    {f"config.{name}": value for name, value in entries.items()},
                    frozenset(modules[path] for path in held),
                )
    except NotRunnableError:
        pass  # nothing is known then, and weights take the factors
    return found


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
        holder: Any = nn.Module()
        holder.config = copy.deepcopy(self._model.config)
        vars(holder.config).pop(STORED, None)
        holder.config._experts_implementation = _IN_PLAIN_CODE
        for name, value in entries.items():
            put(holder, f"config.{name}", value)
        built = on_meta(holder.config, like=self._model).eval()
        with rehearsal(built) as run, torch.no_grad():
            yield run
