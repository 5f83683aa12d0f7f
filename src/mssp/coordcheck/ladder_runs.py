"""The check on the models of a ladder: all seeds of one size train as one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

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
from mssp.replicas.training import bytes_per_replica, check_memory
from mssp.replicas.watching import Measured, watch
from mssp.theory.expected import Theory

_FEWEST_SIZES = 2
_PROBE_EXAMPLES = 16  # sizes of quantities are means over these examples and over the width


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
        sizes, dimension = (self.depths, "depths") if self.depths else (self.widths, "widths")
        if len(set(sizes)) < len(sizes) or len(sizes) < _FEWEST_SIZES:
            got = " ".join(map(str, sizes))
            raise ValueError(f"an exponent needs at least {_FEWEST_SIZES} different {dimension}, got {got}")
        if self.depths and len(self.widths) != 1:
            raise ValueError(f"depths are checked at one width, got {' '.join(map(str, self.widths))}")

    def programs(
        self, setting: Setting, tuned: Tuned, ladders: Ladders, data: Dataset, active: int | None = None
    ) -> dict[int, PlannedProgram]:
        """The planned programs by the size that grows, with a setting's tuned multipliers."""
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
    """The multipliers with a learning rate at which narrow models do not diverge: for SGD, half of the tuned one.

    SGD's tuned rate is nearly the largest that is stable, and under muP it is too large for models narrower than that
    for which it was tuned.
    """
    return replace(tuned, lr=tuned.lr / 2) if optimizer.follows_gradients else tuned


def check_runs(
    programs: Mapping[int, PlannedProgram],
    feed: Feed,
    *,
    steps: int,
    batch: int | Mapping[int, int],
    seeds: Sequence[int],
    rules: Mapping[int, Plan] | None = None,
    prepare: Callable[[Lockstep], None] | None = None,
    on_step: Callable[[], None] | None = None,
) -> Check:
    """Train every size for a few steps, measure after each step, fit exponents over the sizes and judge them.

    Args:
        programs: the planned programs by the size that grows.
        batch: the examples of an update, the same for all sizes or for each.
        rules: the plans to judge by, if they are not those of the programs, in an experiment that breaks a rule.
        prepare: called with the replicas of each size before they train; it may change what the plan set.
    """
    batches = batch if isinstance(batch, Mapping) else dict.fromkeys(programs, batch)
    check_memory_of(programs, len(seeds), max(batches.values()), feed.device)
    schedules = {size: Schedule(steps, batches[size]) for size in programs}
    series = measured(programs, feed, schedules, seeds, prepare=prepare, on_step=on_step)
    return Check.of(series, theory_of(rules or {size: program.plan for size, program in programs.items()}))


def check_memory_of(programs: Mapping[int, PlannedProgram], seeds: int, batch: int, device: torch.device) -> None:
    """Refuse sizes whose models do not fit on a device, where all seeds of one size train together."""
    for size, planned_program in programs.items():
        program, optimizer = planned_program.program, planned_program.plan.setting.optimizer
        each = bytes_per_replica(program, optimizer, batch, device)
        check_memory(f"size {size} with {seeds} seeds (--seeds), which train together,", seeds * each, device)


def theory_of(plans: Mapping[int, Plan]) -> Theory:
    """The predictions for models of these plans. What the paper leaves open of their first steps is simulated."""
    depths = {plan.target.depth for plan in plans.values()}
    return Theory(plans, for_open_questions(plans[min(plans)]) if len(depths) == 1 else None)


def measured(
    programs: Mapping[int, PlannedProgram],
    feed: Feed,
    schedules: Schedule | Mapping[int, Schedule],
    seeds: Sequence[int],
    *,
    prepare: Callable[[Lockstep], None] | None = None,
    on_step: Callable[[], None] | None = None,
) -> Series:
    """The measured quantities of all programs, by one schedule or one for each; the other arguments are as above."""
    by_itself = schedules if isinstance(schedules, Mapping) else dict.fromkeys(programs, schedules)
    by_size = {
        size: _watched(program, feed, by_itself[size], seeds, prepare, on_step) for size, program in programs.items()
    }
    return Series.of(by_size, next(iter(programs.values())).plan.setting.optimizer)


def _watched(
    planned_program: PlannedProgram,
    feed: Feed,
    schedule: Schedule,
    seeds: Sequence[int],
    prepare: Callable[[Lockstep], None] | None,
    on_step: Callable[[], None] | None,
) -> Measured:
    """The measured quantities of one size, whose replicas train together."""
    replicas = [Replica(planned_program.plan, seed) for seed in seeds]
    lockstep = Lockstep(planned_program.program, replicas, device=feed.device, measure_gradients=True)
    if prepare is not None:
        prepare(lockstep)
    # The probe is the first examples that each seed trains on: on these an effective update is largest.
    x, targets = next(iter(feed.batches(lockstep.seeds, schedule)))
    probe = x[:, :_PROBE_EXAMPLES], targets[:, :_PROBE_EXAMPLES]
    return watch(lockstep, probe, feed.batches(lockstep.seeds, schedule), on_step)
