"""A trial is one training to do: a model of a ladder (models of growing size), its hyperparameters and its seed.

A study stores it as a line of JSON, whose hash is the key of its run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

from mssp._constraints import kind_of, mapping, optional, positive, positive_int, takes, whole
from mssp.ladders.ladder import Ladder
from mssp.ladders.tuned import Tuned, planned
from mssp.planning.plans import Plan
from mssp.planning.setting import Setting

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
        return hashlib.sha256(self.json().encode()).hexdigest()[:16]

    def json(self) -> str:
        return self._line

    @cached_property
    def _line(self) -> str:
        return _ENCODER.encode(self._entries())

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
        entries = json.loads(text)
        words = {name: entries.pop(name) for name in ("scheme", "regime", "optimizer", "readout") if name in entries}
        return cls(Setting.of(**words), **entries)


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
