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

_LEAST = 2  # sizes
PROBE = 16  # examples; sizes are means over them and over the width


@dataclass(frozen=True)
class PlannedProgram:
    """One size of a check: the model, and the plan that it trains by."""

    program: Program
    plan: Plan


@dataclass(frozen=True)
class LadderSizes:
    """The sizes of a check: several widths of a ladder, or several depths of residual blocks at one width."""

    widths: tuple[int, ...]
    depths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        growing = self.depths or self.widths
        what = "depths" if self.depths else "widths"
        if len(set(growing)) < len(growing) or len(growing) < _LEAST:
            raise ValueError(f"an exponent needs at least {_LEAST} different {what}, got {' '.join(map(str, growing))}")
        if self.depths and len(self.widths) != 1:
            raise ValueError(f"depths are checked at one width, got {' '.join(map(str, self.widths))}")

    def programs(
        self, setting: Setting, tuned: Tuned, ladders: Ladders, data: Dataset, active: int | None = None
    ) -> dict[int, PlannedProgram]:
        """By the size that grows, with a setting's tuned multipliers."""
        assert setting.regime is not None
        ladder = ladders(setting.regime, data, active)
        if self.depths:
            members = {depth: (ladder.deep(depth), self.widths[0]) for depth in sorted(self.depths)}
        else:
            members = {width: (ladder, width) for width in sorted(self.widths)}
        return {
            size: PlannedProgram(ladder.program(width), planned(ladder.shape(width), tuned, setting))
            for size, (ladder, width) in members.items()
        }


def with_safe_lr(tuned: Tuned, optimizer: Optimizer) -> Tuned:
    """The multipliers with a learning rate at which narrow models do not diverge: half of what was tuned for SGD.

    SGD's tuned rate is nearly the largest that is stable, and under muP it is too large for models narrower than that
    for which it was tuned.
    """
    return replace(tuned, lr=tuned.lr / 2) if optimizer.follows_gradients else tuned


def check_runs(
    programs: Mapping[int, PlannedProgram],
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
        programs: by the size that grows.
        rules: the plans to judge by, if they are not those of the programs (an experiment that breaks a rule).
        prepare: called with each program before it trains: an experiment may change there what the plan set.
    """
    series = measured(programs, feed, Schedule(steps, batch), seeds, prepare=prepare, on_step=on_step)
    return Check.of(series, theory_of(rules or {size: each.plan for size, each in programs.items()}))


def theory_of(plans: Mapping[int, Plan]) -> Theory:
    """The predictions for models of these plans; what the paper leaves open of their first steps is simulated."""
    depths = {plan.target.depth for plan in plans.values()}
    return Theory(plans, for_open_questions(plans[min(plans)]) if len(depths) == 1 else None)


def measured(
    programs: Mapping[int, PlannedProgram],
    feed: Feed,
    schedule: Schedule,
    seeds: Sequence[int],
    *,
    prepare: Callable[[Lockstep], None] | None = None,
    on_step: Callable[[], None] | None = None,
) -> Series:
    """Every quantity of every program (see :func:`check_runs`)."""
    by_size = {size: _measured(each, feed, schedule, seeds, prepare, on_step) for size, each in programs.items()}
    return Series.of(by_size, next(iter(programs.values())).plan.setting.optimizer)


def _measured(
    planned_program: PlannedProgram,
    feed: Feed,
    schedule: Schedule,
    seeds: Sequence[int],
    prepare: Callable[[Lockstep], None] | None,
    on_step: Callable[[], None] | None,
) -> Measured:
    replicas = [Replica(planned_program.plan, seed) for seed in seeds]
    lockstep = Lockstep(planned_program.program, replicas, device=feed.device, measure_gradients=True)
    if prepare is not None:
        prepare(lockstep)
    # The first examples that each seed trains on: on them an effective update is felt most.
    x, targets = next(iter(feed.batches(lockstep.seeds, schedule)))
    probe = x[:, :PROBE], targets[:, :PROBE]
    return watch(lockstep, probe, feed.batches(lockstep.seeds, schedule), on_step)
