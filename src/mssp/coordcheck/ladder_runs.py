"""The check on the models of a ladder: all seeds of one size train as one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mssp.coordcheck.minimal_moe import for_open_questions
from mssp.coordcheck.result import Check
from mssp.coordcheck.series import Series
from mssp.data.dataset import Dataset
from mssp.ladders.ladder import Ladders
from mssp.ladders.tuned import Tuned, planned
from mssp.planning.plans import Plan
from mssp.planning.setting import Optimizer, Setting
from mssp.replicas import Feed, Replica, Schedule
from mssp.replicas.lockstep import Lockstep
from mssp.replicas.program import Program
from mssp.replicas.watching import Measured, watch
from mssp.theory.expected import Theory

_LEAST = 2

PROBE = 16  # examples; sizes are means over them and over the width


@dataclass(frozen=True)
class Run:
    """One size of a check: the model, and the plan that it trains by."""

    program: Program
    plan: Plan


@dataclass(frozen=True)
class Sizes:
    """The models of a check: those of a family at several widths, or stacks of residual blocks at one."""

    widths: tuple[int, ...]
    depths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        growing = self.depths or self.widths
        what = "depths" if self.depths else "widths"
        if len(set(growing)) < len(growing) or len(growing) < _LEAST:
            raise ValueError(f"an exponent needs at least {_LEAST} different {what}, got {' '.join(map(str, growing))}")
        if self.depths and len(self.widths) != 1:
            raise ValueError(f"depths are checked at one width, got {' '.join(map(str, self.widths))}")

    def runs(
        self, setting: Setting, tuned: Tuned, ladders: Ladders, data: Dataset, active: int | None = None
    ) -> dict[int, Run]:
        """By the size that grows, with a setting's tuned multipliers."""
        assert setting.regime is not None
        ladder = ladders(setting.regime, data, active)
        found = {}
        for size in sorted(self.depths or self.widths):
            one, width = (ladder.deep(size), self.widths[0]) if self.depths else (ladder, size)
            found[size] = Run(one.program(width), planned(one.shape(width), tuned, setting))
        return found


def with_safe_lr(tuned: Tuned, optimizer: Optimizer) -> Tuned:
    """What was tuned, at the learning rate of a check: SGD's own is at the edge, and muP's narrow models go over it."""
    return replace(tuned, lr=tuned.lr / 2) if optimizer.follows_gradients else tuned


def check_runs(
    runs: Mapping[int, Run],
    feed: Feed,
    *,
    steps: int,
    batch: int,
    seeds: Sequence[int],
    rules: Mapping[int, Plan] | None = None,
    prepare: Callable[[Lockstep], None] | None = None,
    on_step: Callable[[], None] | None = None,
) -> Check:
    """Train every size a few steps, measure after each, fit over sizes and judge.

    Args:
        runs: by the size that grows.
        rules: the plans to judge by, where they are not those of the runs (an experiment that breaks a rule).
        prepare: called with each program before it trains: where an experiment changes what the plan gave it.
    """
    series = measured(runs, feed, Schedule(steps, batch), seeds, prepare=prepare, on_step=on_step)
    return Check.of(series, theory_of(rules or {size: run.plan for size, run in runs.items()}))


def theory_of(plans: Mapping[int, Plan]) -> Theory:
    """What to expect of models by these plans; what the paper leaves open of their first steps is simulated."""
    depths = {each.target.depth for each in plans.values()}
    return Theory(plans, for_open_questions(plans[min(plans)]) if len(depths) == 1 else None)


def measured(
    runs: Mapping[int, Run],
    feed: Feed,
    schedule: Schedule,
    seeds: Sequence[int],
    *,
    prepare: Callable[[Lockstep], None] | None = None,
    on_step: Callable[[], None] | None = None,
) -> Series:
    """Every quantity of every run (see :func:`check_runs`)."""
    by_size = {size: _measured(run, feed, schedule, seeds, prepare, on_step) for size, run in runs.items()}
    return Series.of(by_size, next(iter(runs.values())).plan.setting.optimizer)


def _measured(
    run: Run,
    feed: Feed,
    schedule: Schedule,
    seeds: Sequence[int],
    prepare: Callable[[Lockstep], None] | None,
    on_step: Callable[[], None] | None,
) -> Measured:
    replicas = [Replica(run.plan, seed) for seed in seeds]
    lockstep = Lockstep(run.program, replicas, device=feed.device, measure_gradients=True)
    if prepare is not None:
        prepare(lockstep)
    # The first examples that each seed trains on: an effective update is felt most by what made it.
    x, targets = next(iter(feed.batches(lockstep.seeds, schedule)))
    probe = x[:, :PROBE], targets[:, :PROBE]
    return watch(lockstep, probe, feed.batches(lockstep.seeds, schedule), on_step)
