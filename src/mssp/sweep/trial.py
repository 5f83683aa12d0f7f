"""One run of a study: a model of a ladder with its hyperparameters and its seed, as one line of JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mssp._constraints import kind_of, mapping, optional, positive, positive_int, takes, whole
from mssp.ladders.ladder import Ladder
from mssp.ladders.tuned import Tuned, planned
from mssp.planning.plans import Plan
from mssp.planning.setting import Setting


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
        """This trial with a setting's multipliers, at its own learning rate."""
        return replace(
            self,
            init_mult=tuned.init_mult,
            lr_mult=dict(tuned.lr_mult),
            aggregation_mult=tuned.aggregation_mult,
            base_width=tuned.base_width,
        )

    def plan(self, ladder: Ladder) -> Plan:
        """The plan by which it trains; ``ladder`` is that of its regime."""
        tuned = Tuned(self.lr, self.init_mult, self.lr_mult, self.aggregation_mult, self.base_width)
        return planned(ladder.shape(self.width), tuned, self.setting)

    @property
    def alike(self) -> tuple[Any, ...]:
        """Trials can train in lockstep if this is equal."""
        return self.setting.optimizer, self.setting.regime, self.width, self.active

    @property
    def parameters(self) -> dict[str, float | int | str | bool | None]:
        """All its fields as columns of a table."""
        entries = self._entries()
        lr_mult = entries.pop("lr_mult")
        return entries | {f"lr_mult.{role}": number for role, number in lr_mult.items()}

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(self.json().encode()).hexdigest()[:16]

    def json(self) -> str:
        return json.dumps(self._entries(), sort_keys=True)

    def _entries(self) -> dict[str, Any]:
        """All its fields in the order of tables.

        The base width is there only if there is one, so that trials without one keep their keys.
        """
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
    """Trials in chunks that train together: alike ones, no more than fit.

    Replicas of one seed share their batches. So a chunk holds equally many trials of all seeds, in the order of the
    seeds; or trials of one seed, if there are more trials of some seeds than of others.

    Args:
        sizes: how many trials fit, by :attr:`Trial.alike`.
    """
    from mssp.replicas.training import even_parts

    groups: dict[tuple[Any, ...], dict[int, list[Trial]]] = {}
    for trial in trials:
        groups.setdefault(trial.alike, {}).setdefault(trial.seed, []).append(trial)
    chunks = []
    for alike, by_seed in groups.items():
        of_seeds = [by_seed[seed] for seed in sorted(by_seed)]
        if len(set(map(len, of_seeds))) == 1:
            parts = even_parts(len(of_seeds[0]), max(1, sizes[alike] // len(of_seeds)))
            chunks += [[trial for of_seed in of_seeds for trial in of_seed[part]] for part in parts]
        else:
            chunks += [of_seed[part] for of_seed in of_seeds for part in even_parts(len(of_seed), sizes[alike])]
    return chunks
