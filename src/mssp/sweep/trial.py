"""A trial is one training to do: a model of a ladder (models of growing size), its hyperparameters and its seed.

A study stores it as a line of JSON, whose hash is the key of its run.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

from mssp._constraints import Constraint, kind_of, mapping, optional, positive, positive_int, shown, takes, whole
from mssp.ladders.ladder import Ladder
from mssp.ladders.tuned import Tuned, planned
from mssp.planning.plan_file import MISSING, differences
from mssp.planning.plans import Plan
from mssp.planning.setting import Setting
from mssp.store.runs import Run

_ENCODER = json.JSONEncoder(sort_keys=True)  # made once: hundreds of thousands of trials are written
MOST_RUNS = 300_000  # of one command; only to plan and to store so many takes a quarter of a minute


def check_runs(runs: int, made_by: str) -> None:
    """Refuse more runs than a command may have, before any of them is planned.

    >>> check_runs(10**12, "1 curve x 1000000000000 seeds")
    Traceback (most recent call last):
        ...
    ValueError: 1,000,000,000,000 runs are more than the 300,000 of one command: 1 curve x 1000000000000 seeds
    """
    if runs > MOST_RUNS:
        count = f"{runs:,}" if runs < 10**18 else f"{Decimal(runs):.0e}"
        raise ValueError(f"{count} runs are more than the {MOST_RUNS:,} of one command: {made_by}")


@takes(
    setting=kind_of(Setting),
    width=positive_int,
    seed=whole,
    lr=positive,
    init_mult=positive,
    lr_mult=mapping,
    aggregation_mult=positive,
    base_width=optional(positive_int),
    active=optional(positive_int),
)
@dataclass(frozen=True)
class Trial:
    """A model of a ladder, with its hyperparameters and its seed.

    >>> trial = Trial(Setting.of("mssp", "II", "sgd"), width=128, seed=0, lr=0.01, lr_mult={"router": 4.0})
    >>> Trial.from_json(trial.json()) == trial
    True
    """

    setting: Setting
    width: int
    seed: int
    lr: float
    init_mult: float = 1.0
    lr_mult: Mapping[str, float] = field(default_factory=dict)
    aggregation_mult: float = 1.0
    base_width: int | None = None
    active: int | None = None

    def with_tuned(self, tuned: Tuned) -> Trial:
        """This trial with tuned multipliers; its learning rate stays as it is."""
        return replace(
            self,
            init_mult=tuned.init_mult,
            lr_mult=dict(tuned.lr_mult),
            aggregation_mult=tuned.aggregation_mult,
            base_width=tuned.base_width,
        )

    def plan(self, ladder: Ladder) -> Plan:
        """The plan for this trial's model; ``ladder`` is the ladder of the trial's regime."""
        tuned = Tuned(self.lr, self.init_mult, self.lr_mult, self.aggregation_mult, self.base_width)
        return planned(ladder.shape(self.width), tuned, self.setting)

    @property
    def group_key(self) -> tuple[Any, ...]:
        """Trials with equal group keys can train in lockstep."""
        return self.setting.optimizer, self.setting.regime, self.width, self.active

    @property
    def parameters(self) -> dict[str, float | int | str | bool | None]:
        """The trial's fields as columns of a table."""
        entries = self._entries()
        lr_mult = entries.pop("lr_mult")
        return entries | {f"lr_mult.{role}": number for role, number in lr_mult.items()}

    @cached_property
    def key(self) -> str:
        return key_of(self.json())

    def json(self) -> str:
        return self._line

    @cached_property
    def _line(self) -> str:
        before, after_lr, after_seed, after_width = self._pieces
        return f"{before}{float.__repr__(self.lr)}{after_lr}{self.seed}{after_seed}{self.width}{after_width}"

    @cached_property
    def _pieces(self) -> list[str]:
        """The line of JSON around its learning rate, its seed and its width; :meth:`at` hands it on."""
        return _ENCODER.encode(self._entries() | dict.fromkeys(_VARYING, "\0")).split('"\\u0000"')

    def _entries(self) -> dict[str, Any]:
        """The trial's fields in the order of tables. A base width of None is left out, so that keys stay stable."""
        words = self.setting.words()
        if words["as_printed"]:
            raise ValueError(
                f"{self.setting}: trials follow the corrected table, and a store would not tell them apart"
            )
        return {
            **{name: words[name] for name in ("regime", "scheme", "optimizer")},
            **{name: getattr(self, name) for name in ("width", "seed", "lr", "init_mult")},
            "lr_mult": dict(self.lr_mult),
            "aggregation_mult": self.aggregation_mult,
            **({} if self.base_width is None else {"base_width": self.base_width}),
            "active": self.active,
            "readout": words["readout"],
        }

    @classmethod
    def from_json(cls, text: str) -> Trial:
        """The trial that :meth:`json` wrote; ValueError for anything else."""
        try:
            entries = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            entries = None
        if not isinstance(entries, dict):
            raise ValueError(f"a trial must be a JSON object, got {shown(text)}")
        for name in _VARYING:
            if name not in entries:
                raise ValueError(f"a trial must have {name!r}, got {', '.join(entries) or 'nothing'}")
        varying = {name: entries.pop(name) for name in _VARYING}
        alike = _with_entries(_ENCODER.encode(entries))
        return alike.at(**{name: check(name, varying[name]) for name, check in _VARYING.items()})

    @classmethod
    def of(cls, run: Run) -> Trial:
        """The trial of a stored run. A run whose spec, key and parameters do not belong together is refused."""
        try:
            trial = cls.from_json(run.spec)
        except ValueError as error:
            raise ValueError(f"run {run.key!r}: {error}") from None
        if trial.parameters != run.parameters:
            name, here, there = next(differences(trial.parameters, run.parameters, operator.eq))
            values = " in its spec and ".join(
                "missing" if value is MISSING else shown(value) for value in (here, there)
            )
            raise ValueError(f"run {run.key!r}: {name} is {values} in its parameters")
        if key_of(run.spec) != run.key:
            raise ValueError(f"run {run.key!r}: its key is not that of its spec, which is {key_of(run.spec)!r}")
        return trial

    def at(self, width: int, seed: int, lr: float) -> Trial:
        """This trial at another width, seed and learning rate, which have been checked: sweeps make thousands."""
        trial = object.__new__(type(self))
        vars(trial).update({name: getattr(self, name) for name in _NAMES}, width=width, seed=seed, lr=lr)
        vars(trial)["_pieces"] = self._pieces
        return trial


_NAMES = tuple(entry.name for entry in fields(Trial))
# What differs between the trials of one setting, and what it must be.
_VARYING: dict[str, Constraint[Any]] = {"width": positive_int, "seed": whole, "lr": positive}


@lru_cache(maxsize=1000)
def _with_entries(text: str) -> Trial:
    """A trial with these entries, which are all but those that vary."""
    entries = json.loads(text)
    words = {name: entries.pop(name) for name in ("scheme", "regime", "optimizer", "readout") if name in entries}
    unknown = [name for name in entries if name not in _NAMES]
    if unknown:
        raise ValueError(f"{unknown[0]} is unknown to this mssp, which is older than the store: upgrade mssp")
    missing = {"scheme", "regime", "optimizer"} - words.keys()
    if missing:
        raise ValueError(f"a trial must have {min(missing)!r}")
    trial = Trial(Setting.of(**words), 1, 0, 1.0, **entries)
    for role, multiplier in trial.lr_mult.items():
        positive(f"lr_mult.{role}", multiplier)
    return trial


def key_of(spec: str) -> str:
    """The key of a run with this spec."""
    return hashlib.sha256(spec.encode()).hexdigest()[:16]


def in_chunks(trials: Sequence[Trial], sizes: Mapping[tuple[Any, ...], int]) -> list[list[Trial]]:
    """Group trials into chunks: trials of one chunk have the same group key and fit on the device together.

    Replicas of one seed share their batches. So a chunk holds equally many trials of every seed, in the order of the
    seeds. If some seeds have more trials than others, a chunk holds trials of one seed.

    Args:
        sizes: the number of trials that fit on the device together, by :attr:`Trial.group_key`.
    """
    from mssp.replicas.training import even_parts

    groups: dict[tuple[Any, ...], dict[int, list[Trial]]] = {}
    for trial in trials:
        groups.setdefault(trial.group_key, {}).setdefault(trial.seed, []).append(trial)
    chunks = []
    for group_key, by_seed in groups.items():
        seed_groups = [by_seed[seed] for seed in sorted(by_seed)]
        if len(set(map(len, seed_groups))) == 1:
            slices = even_parts(len(seed_groups[0]), max(1, sizes[group_key] // len(seed_groups)))
            chunks += [[trial for group in seed_groups for trial in group[part]] for part in slices]
        else:
            chunks += [group[part] for group in seed_groups for part in even_parts(len(group), sizes[group_key])]
    return chunks
