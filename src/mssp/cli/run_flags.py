"""What commands that train have in common: data, length, device, store."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from mssp._environment import device_text
from mssp._numbers import positive_int
from mssp.cli import flags
from mssp.ladders.tuned import Tuned, data_with_tuned_multipliers, multipliers_for
from mssp.planning.plans import Plan

if TYPE_CHECKING:
    from mssp.data.dataset import Dataset
    from mssp.store.runs import Store
    from mssp.sweep.execution import Backend, Job
    from mssp.sweep.transfer import Metric, Setting

_TOP = 5
# Learning rates to look around where none was tuned: of all ones, and of a plain model.
_ONES = 0.01
_PLAIN = {"sgd": 1.0, "adam": 0.005, "adamw": 0.005}


@dataclass
class RunFlags:
    data: flags.Name = "clusters"
    """clusters (the default) or spectra, both embedded, tinyimagenet, cifar10, an .npz file or a folder of images"""
    steps: flags.Size = 1000
    """training steps of a run, in a single pass (default 1000)"""
    batch: flags.Size = 50
    """examples per step (default 50)"""
    validation: flags.Size = None
    """validation examples to use (default: all)"""
    active: flags.Size = None
    """experts per input where there are eight, growing with their number (default: all)"""
    readout: flags.Name = "zero"
    """how the readout starts: zero (default), mup (std 1/N) or scheme"""
    store: flags.Path = "runs.sqlite"
    """where runs are kept: a killed command goes on from there (default runs.sqlite)"""
    device: flags.Name = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1"""
    precision: flags.Name = "float32"
    """of matrix products: float32 (default), or tf32, about twice as fast on GPUs"""
    backend: flags.Name = "local"
    """local (this process), or ray (tasks on a Ray cluster, one that is started if there is none)"""
    json: bool = False
    """print JSON"""
    plot: flags.Path = None
    """write a figure: .html, or .svg, .pdf, .png"""
    export: flags.Path = None
    """write all runs as a table: .csv, .parquet, .json or .jsonl"""

    def job(self, *, keep_curves: bool, steps: int | None = None) -> Job:
        from mssp.data import load
        from mssp.replicas import Schedule
        from mssp.replicas.lockstep import PRECISIONS
        from mssp.sweep.execution import Job

        if self.precision not in PRECISIONS:
            raise ValueError(f"unknown --precision {self.precision!r}: use one of {', '.join(PRECISIONS)}")
        schedule = Schedule(
            steps or positive_int("--steps", self.steps or 0),
            positive_int("--batch", self.batch or 0),
            validation=self.validation,
        )
        return Job(load(self.data or "clusters"), schedule, self.precision or "", keep_curves)

    def runner(self) -> Backend:
        from mssp._environment import pick_device
        from mssp.sweep.execution import Local

        if self.backend == "local":
            return Local(pick_device(self.device or "auto"))
        if self.backend == "ray":
            from mssp.sweep.on_ray import Ray

            return Ray(self.device or "auto")
        raise ValueError(f"unknown --backend {self.backend!r}: use local or ray")

    def check_files(self, *more_figures: str | None) -> None:
        """Refuse names that could not be written to, before anything is trained."""
        if self.export is not None:
            from mssp.store import table

            table.check_target(self.export)
        for figure in (self.plot, *more_figures):
            if figure is not None:
                from mssp.report import saving

                saving.check_target(figure)

    def check_metric(self, name: str, data: Dataset) -> Metric:
        from mssp.sweep.transfer import METRICS

        if name not in METRICS:
            raise ValueError(f"unknown --metric {name!r}: use one of {', '.join(METRICS)}")
        if name.endswith("top5") and data.classes <= _TOP:
            other = name.replace("top5", "accuracy")
            raise ValueError(
                f"top-5 is always right with the {data.classes} classes of {data.name}: use --metric {other}"
            )
        return METRICS[name]

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """The store; whoever stops a command is told that nothing is lost."""
        from mssp.store.runs import Store

        path = self.store or "runs.sqlite"
        with Store(path, device=device_text(self.device or "auto")) as store:
            try:
                yield store
            except KeyboardInterrupt:
                print(f"mssp: stopped: what is finished is in {path}, the same command goes on", file=sys.stderr)
                raise


def multipliers(
    asked: Sequence[str], data: str, setting: Setting, *, narrowest: int | None = None, for_any: bool = False
) -> Tuned:
    """``tuned`` for this data, ``ones``, ``plain``, another data set's, or those in a plan file for this setting.

    Args:
        narrowest: the width at which a plain model is the same for all schemes; None where there is no such thing.
        for_any: take a plan file of another setting too, as a place to start from.
    """
    if list(asked) == ["ones"]:
        return Tuned(_ONES)
    if list(asked) == ["plain"]:
        if narrowest is None:
            raise ValueError("--multipliers plain is one model of the smallest of several widths: here there is none")
        return Tuned(_PLAIN[setting.optimizer], base_width=narrowest)
    if len(asked) == 1 and asked[0] in ("tuned", *data_with_tuned_multipliers()):
        return multipliers_for(data if asked[0] == "tuned" else asked[0], **asdict(setting))
    wanted = (setting.optimizer, setting.regime, setting.scheme, setting.readout, (setting.active or 8) / 8)
    plans = {file: _plan_in(file) for file in asked}
    for file, plan in plans.items():
        active = plan.target.active / plan.target.experts
        if for_any or (plan.optimizer, plan.regime, plan.scheme, plan.readout, active) == wanted:
            try:
                return Tuned.of(plan)
            except ValueError as error:
                raise ValueError(f"{file}: {error}") from None
    held = [f"{file} is for Regime {plan.regime}, {plan.scheme}, {plan.optimizer}" for file, plan in plans.items()]
    raise ValueError(f"--multipliers has none for {setting}: {'; '.join(held)}")


def _plan_in(file: str) -> Plan:
    if not FilePath(file).exists():
        known = ", ".join(("tuned", "ones", "plain", *data_with_tuned_multipliers()))
        raise ValueError(f"--multipliers {file!r} is no file, and none of {known}")
    return flags.plan_in(file)
