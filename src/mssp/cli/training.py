"""The flags of the commands that train many runs (``sweep``, ``tune``), and the multipliers that runs start from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mssp._environment import device_text, pick_device
from mssp.cli import flags
from mssp.ladders.tuned import Tuned, data_with_tuned_multipliers, multipliers_for
from mssp.planning.setting import ZERO

if TYPE_CHECKING:
    from mssp.data import Dataset
    from mssp.store.runs import Store
    from mssp.sweep.execution import Backend, Job
    from mssp.sweep.metrics import Metric
    from mssp.sweep.transfer import Contender

_TOP = 5
# Centres of the learning rates where none was tuned: with all multipliers 1, and of a plain model by SGD or by Adam.
_LR_OF_ONES = 0.01
_LR_BY_GRADIENTS, _LR_BY_MOMENTS = 1.0, 0.005


@dataclass
class RunFlags:
    data: flags.Data = "clusters"
    """clusters (the default) or spectra, both embedded, tinyimagenet, cifar10, an .npz file or a folder of images"""
    data_gib: flags.MaybePositive = None
    """GiB that --data may take in memory, for files and folders (default 4)"""
    steps: flags.Size = 1000
    """training steps of a run, in a single pass (default 1000)"""
    batch: flags.Size = 50
    """examples per step (default 50)"""
    validation: flags.MaybeSize = None
    """validation examples to use (default: all)"""
    active: flags.MaybeSize = None
    """experts per input where there are eight, growing with their number (default: all)"""
    readout: flags.Readout = ZERO
    """how the readout starts: zero (default), mup (std 1/N) or scheme"""
    store: flags.Kept = Path("runs.sqlite")
    """where runs are kept: a killed command goes on from there (default runs.sqlite)"""
    device: flags.Device = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1"""
    precision: flags.Precision = "float32"
    """of matrix products: float32 (default), or tf32, about twice as fast on GPUs"""
    backend: flags.Backend = "local"
    """local (this process), or ray (tasks on a Ray cluster, one that is started if there is none)"""
    json: flags.Switch = False
    """print JSON"""
    plot: flags.MaybeFigure = None
    """write a figure: .html, or .svg, .pdf, .png"""
    export: flags.MaybeTable = None
    """write all runs as a table: .csv, .parquet, .json or .jsonl"""

    def job(self, metric: Metric, *, keep_curves: bool) -> Job:
        """The data and the schedule that all runs share. Top-5 is refused for data of five classes or fewer."""
        from mssp.ladders.mlp import MLPLadder
        from mssp.replicas import Schedule
        from mssp.sweep.execution import Job

        data = loaded(self.data, self.data_gib)
        if metric.name.endswith("top5") and data.classes <= _TOP:
            better = metric.name.replace("top5", "accuracy")
            raise ValueError(
                f"top-5 is always right with the {data.classes} classes of {data.name}: use --metric {better}"
            )
        schedule = Schedule(self.steps, self.batch, validation=self.validation)
        return Job(data, schedule, MLPLadder, self.precision, keep_curves)

    def runner(self) -> Backend:
        """What carries out runs: this process, or a Ray cluster."""
        from mssp.sweep.execution import Local

        if self.backend == "ray":
            from mssp.sweep.on_ray import Ray

            return Ray(self.device)
        return Local(pick_device(self.device))

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """The store of runs. A command that is stopped says that its finished runs are kept.

        A store that may not be written is opened to be read: where all runs are finished, that is enough.
        """
        from mssp.store.runs import Store

        may_write = all(os.access(path, os.W_OK) for path in (self.store, self.store.absolute().parent))
        read_only = self.store.exists() and not may_write
        with Store(self.store, read_only=read_only, device=device_text(self.device)) as store:
            try:
                yield store
            except KeyboardInterrupt as stop:
                stop.add_note(f"what is finished is in {self.store}, the same command goes on")
                raise


def loaded(data: str, gib: float | None) -> Dataset:
    """The data of a command, which may take so many GiB in memory if they come from files."""
    from mssp.data import NAMES, load

    if gib is not None and data in NAMES:
        raise ValueError(f"--data-gib is for files and folders: --data {data} is as large as it is")
    return load(data) if gib is None else load(data, gib=gib)


def multipliers(
    sources: Sequence[str],
    data: str,
    contender: Contender,
    *,
    narrowest: int | None = None,
    for_any: bool = False,
) -> Tuned:
    """The multipliers that a flag ``--multipliers`` means for one contender: a setting, with its active experts.

    Args:
        sources: ``tuned`` for this data, ``ones``, ``plain``, another data set's name, or plan files.
        narrowest: the width at which a plain model is the same for all schemes, or None where widths do not vary.
        for_any: take a plan file of another setting too, as a place to start from.
    """
    setting = contender.setting
    if list(sources) == ["ones"]:
        return Tuned(_LR_OF_ONES)
    if list(sources) == ["plain"]:
        if narrowest is None:
            raise ValueError("--multipliers plain is one model of the smallest of several widths: here there is none")
        lr = _LR_BY_GRADIENTS if setting.optimizer.follows_gradients else _LR_BY_MOMENTS
        return Tuned(lr, base_width=narrowest)
    if len(sources) == 1 and sources[0] in ("tuned", *data_with_tuned_multipliers()):
        return multipliers_for(data if sources[0] == "tuned" else sources[0], setting, contender.active)
    plans = {file: flags.read_plan(Path(file)) for file in sources}
    for file, plan in plans.items():
        routes_alike = plan.target.active / plan.target.experts == (contender.active or 8) / 8
        if for_any or (replace(plan.setting, as_printed=False) == setting and routes_alike):
            try:
                return Tuned.of(plan)
            except ValueError as error:
                raise ValueError(f"{file}: {error}") from None
    in_files = [f"{file} is for Regime {plan.regime}, {plan.scheme}, {plan.optimizer}" for file, plan in plans.items()]
    raise ValueError(f"--multipliers has none for {contender}: {'; '.join(in_files)}")
