"""One run: everything that tells it apart, in a line of JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mssp.ladders.ladder import Ladder
from mssp.ladders.tuned import Tuned, planned
from mssp.planning.plans import Plan
from mssp.planning.setting import Setting


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
        """This trial with a setting's multipliers, at its own learning rate."""
        return replace(
            self,
            init_mult=tuned.init_mult,
            lr_mult=dict(tuned.lr_mult),
            aggregation_mult=tuned.aggregation_mult,
            base_width=tuned.base_width,
        )

    def plan(self, ladder: Ladder) -> Plan:
        """Its plan, on the ladder of its regime."""
        tuned = Tuned(self.lr, self.init_mult, self.lr_mult, self.aggregation_mult, self.base_width)
        return planned(ladder.shape(self.width), tuned, self.setting)

    @property
    def alike(self) -> tuple[Any, ...]:
        """Trials for which this is equal train in lockstep."""
        return self.setting.optimizer, self.setting.regime, self.width, self.active

    @property
    def parameters(self) -> dict[str, float | int | str | bool | None]:
        """What tells trials apart, flat, as a table has it."""
        entries = self._entries()
        multipliers = {f"lr_mult.{role}": number for role, number in entries.pop("lr_mult").items()}
        return {**entries, **multipliers}

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(self.json().encode()).hexdigest()[:16]

    def json(self) -> str:
        return json.dumps(self._entries(), sort_keys=True)

    def _entries(self) -> dict[str, Any]:
        """Flat, in the order of tables. A base is named where there is one: most have none, and keep their keys."""
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
    """Trials that train together: alike, of at most the size that fits, seed by seed so that batches are shared.

    A chunk holds equally many trials of each of its seeds where that is possible.
    """
    from mssp.replicas.training import even_parts

    groups: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.alike, []).append(trial)
    found = []
    for alike, members in groups.items():
        seeds = sorted({trial.seed for trial in members})
        by_seed = [[trial for trial in members if trial.seed == seed] for seed in seeds]
        if len({len(each) for each in by_seed}) > 1:
            for each in by_seed:  # unequal: one seed at a time, so that each chunk shares its batches
                found += [each[part] for part in even_parts(len(each), sizes[alike])]
            continue
        together = max(1, sizes[alike] // len(seeds))
        for part in even_parts(len(by_seed[0]), together):
            found.append([trial for each in by_seed for trial in each[part]])
    return found
