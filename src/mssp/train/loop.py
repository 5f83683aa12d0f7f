"""The training loop: from the settings of a run to a trained model, step by step, and on from any checkpoint.

At step s, counted from 0, all processes together take windows s B to (s + 1) B of the data's order. Each computes its
part in micro-batches, and gradients are added up over all of them. So a step is the same however it is spread, up to
rounding, and the number of the step is all that tells where in the data a run is.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from mssp._constraints import a_device, a_plan, function, kind_of, optional, path, several, switch, takes
from mssp._environment import environment
from mssp.apply.groups import optimizer_for
from mssp.apply.initial_weights import initialize
from mssp.apply.verification import verify
from mssp.data import TokenFile, TokenOrder, check_vocabulary, python_tokens, token_file
from mssp.measure.alarms import Alarm
from mssp.planning.plans import Plan
from mssp.train import run_folder
from mssp.train.checkpoints import Checkpoint, Checkpoints, load
from mssp.train.language_models import (
    Parts,
    autocast,
    language_model,
    operations_per_token,
    peak_operations,
)
from mssp.train.layouts import SHARDED, accumulating, clip_, spread
from mssp.train.processes import Processes
from mssp.train.run_log import RunLog, Sink
from mssp.train.schedule import lr_factor
from mssp.train.settings import RunSettings
from mssp.train.watched_run import WatchedRun


@dataclass(frozen=True)
class Step:
    """What a step was: its number after the update, its losses, its gradients' norm, and the rates that it used."""

    step: int
    parts: Mapping[str, float]
    norm: float
    clipped: float  # the share of steps whose gradients were clipped, so far
    lrs: Mapping[str, float]
    seconds: float
    tokens: int
    alarms: tuple[Alarm, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a run ended: after so many steps, with the loss of its last validation."""

    step: int
    validation: float
    folder: Path


Watcher = Callable[[Step], None]


@takes(
    settings=kind_of(RunSettings),
    folder=path,
    processes=optional(kind_of(Processes)),
    device=optional(a_device),
    resume=switch,
    planned=optional(a_plan),
    sinks=several(function),
    watch=function,
)
class Training:
    """A run of training.

    >>> import tempfile
    >>> from mssp.train import RunSettings
    >>> settings = RunSettings.of(
    ...     {
    ...         "model": {"width": 32, "expert_width": 16, "experts": 4, "active": 2, "depth": 2, "head": 16,
    ...                   "vocabulary": 256},
    ...         "plan": {"lr": 0.01, "regime": "III"},
    ...         "data": {"sequence": 16},
    ...         "training": {"steps": 2, "tokens_per_step": 64},
    ...     }
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ended = Training(settings, f"{folder}/run").run()
    >>> ended.step, ended.validation < 5.6
    (2, True)

    Args:
        settings: what is trained, on what, and how long.
        folder: where the run is kept; it must hold no run, unless this one goes on.
        processes, device: where this process computes; one process on the CPU if left out.
        resume: go on from the newest whole checkpoint.
        planned: a plan that was made before; without it, that of the settings.
        sinks: functions that get the numbers of each logged line, such as those of TensorBoard.
        watch: is called after every step.
    """

    def __init__(
        self,
        settings: RunSettings,
        folder: str | Path,
        *,
        processes: Processes | None = None,
        device: torch.device | None = None,
        resume: bool = False,
        planned: Plan | None = None,
        sinks: tuple[Sink, ...] = (),
        watch: Watcher = lambda step: None,
    ) -> None:
        self.settings, self.folder, self._watch = settings, Path(folder), watch
        self.processes = processes = processes or Processes()
        self.device = device = device or torch.device("cpu")
        training = settings.training
        self.layout = training.layout or ("ddp" if processes.several else "one")
        if (self.layout == "one") is processes.several:
            raise ValueError(f"layout must be for {processes.size} processes, got {self.layout}")
        if settings.watch.monitor_every is not None and self.layout in SHARDED:
            raise ValueError(f"monitor_every must be left out with layout {self.layout}: sizes are of whole parameters")
        self.precision = _precision(training.precision, device)
        self._share = _own_share(settings.sequences_per_step, processes)
        self.data = _opened(settings.data.tokens)
        self.order, self._validation = self._orders()
        self.model = language_model(settings, planned)
        self._check_model()
        self.log = RunLog(self.folder if processes.is_first else None, sinks)
        self._checkpoints = Checkpoints(self.folder, training.keep, processes)
        self._start(resume)

    # -- before the first step -----------------------------------------------------------------------------------------

    def _orders(self) -> tuple[TokenOrder, TokenOrder]:
        """The order of the text for training, which must be long enough, and that of the text for validation."""
        data, training = self.settings.data, self.settings.training
        order = TokenOrder(self.data, "train", sequence=data.sequence, seed=training.seed, passes=data.passes)
        order.check_steps(training.steps, self.settings.sequences_per_step)
        return order, TokenOrder(self.data, "validation", sequence=data.sequence, seed=training.seed)

    def _check_model(self) -> None:
        check_vocabulary(self.data, self.model.vocabulary)
        longest = self.model.context
        if longest is not None and self.settings.data.sequence > longest:
            raise ValueError(
                f"sequence must be at most the model's context of {longest}, got {self.settings.data.sequence}"
            )

    def _start(self, resume: bool) -> None:
        """Give the model its weights: those of the plan, or those of a checkpoint."""
        kept = run_folder.Kept.of(self.settings, self.model, self.data)
        checkpoint = None
        if resume:
            run_folder.refuse_another_run(self.folder, kept)
            checkpoint = self._checkpoints.newest()
        else:
            self.processes.on_first(lambda: run_folder.make(self.folder, kept))
        self.model.module.to(self.device)
        self.model.module = spread(self.model.module, self.layout)
        self.module = run_folder.inner(self.model.module)
        initialize(self.module, self.model.plan, seed=self.settings.training.seed)
        self.optimizer = optimizer_for(self.module, self.model.plan, fused=True)
        verify(self.module, self.optimizer, self.model.plan)
        torch.manual_seed(self.settings.training.seed * self.processes.size + self.processes.rank)
        self.run_module: Callable[..., Any] = self.model.module
        if self.settings.training.compile:
            self.run_module = torch.compile(self.run_module)
        self.watched = WatchedRun(self.model, self.module, self.optimizer, self.settings.watch, self._first_rows())
        self._operations = operations_per_token(self.model, self.settings.data.sequence)
        self.step, self._clipped = 0, 0
        if checkpoint is not None:
            self._go_on(checkpoint)
        else:
            self.processes.on_first(lambda: self.log.cut_back(0))
            self._log_start()
        names = {"folder": str(self.folder), "processes": self.processes.size, "layout": self.layout}
        self.log.write_machine("start", self.step, **environment(str(self.device)), precision=self.precision, **names)

    def _go_on(self, checkpoint: Checkpoint) -> None:
        load(checkpoint, self.module, self.optimizer, self.processes)
        self.step, self._clipped = checkpoint.step, int(checkpoint.state["clipped"])
        self.processes.on_first(lambda: self.log.cut_back(int(checkpoint.state["log"])))
        self.watched.go_on_from(self.step, checkpoint.state.get("health"))

    def _first_rows(self) -> Tensor:
        """The first rows of the run, on which sizes are measured."""
        return torch.from_numpy(self.order.rows(0, self.settings.training.micro_batch or self._share)).to(self.device)

    def _log_start(self) -> None:
        self.log.write(
            "start",
            plan=self.model.plan.hash,
            shape=self.model.plan.target.json(),
            parameters=sum(parameter.numel() for parameter in self.module.parameters()),
            data={"path": str(self.data.path), "checksum": self.data.checksum, "tokenizer": self.data.tokenizer},
            settings=self.settings.json(),
        )

    @property
    def title(self) -> str:
        """What is trained on what, in a line."""
        training, target = self.settings.training, self.model.plan.target
        count = sum(parameter.numel() for parameter in self.module.parameters())
        onwards = f", on from step {self.step}" if self.step else ""
        return (
            f"{count / 1e6:,.3g} M parameters, {target}; {training.steps:,} steps of {training.tokens_per_step:,} "
            f"tokens of {self.data.path.name}; {self.precision} on {self.processes.size} × {self.device} "
            f"({self.layout}){onwards}"
        )

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self) -> Ended:
        """Train to the last step. SIGTERM and Ctrl-C save a checkpoint, and end the run after the step at hand."""
        training = self.settings.training
        loss = math.nan
        with _noted_signals() as stopped:
            while self.step < training.steps:
                self._watch(self.one_step())
                at_end = self.step == training.steps
                if at_end or self.step % training.validate_every == 0:
                    loss = self._validate()
                is_asked = self.processes.any(bool(stopped), self.device)
                if is_asked or at_end or self.step % training.save_every == 0:
                    self._save()
                if is_asked:
                    break
        if self.step < training.steps:
            _stop_as_asked(stopped, f"saved after step {self.step}: go on with --resume")
        if math.isnan(loss):
            loss = self._validate(logged=False)
        return Ended(self.step, loss, self.folder)

    def one_step(self) -> Step:
        """One update from the next windows of the data."""
        begun = time.perf_counter()
        training, share = self.settings.training, self._share
        rows = self.order.rows(self.step * self.settings.sequences_per_step + self.processes.rank * share, share)
        batch = torch.from_numpy(rows).to(self.device, non_blocking=True)
        at_once = training.micro_batch or share
        parts: dict[str, Tensor] = {}
        for first in range(0, share, at_once):
            with accumulating(self.model.module, more=first + at_once < share):
                for name, part in self._backward(batch[first : first + at_once]).items():
                    parts[name] = parts[name] + part if name in parts else part
        norm_tensor = self._update()
        # Read once, when all work of the step is queued: a GPU is waited for here alone.
        numbers, norm = self._numbers(parts), float(norm_tensor)
        self._refuse_nan(numbers)
        routers, alarms = self.watched.after_update(self.step)
        self.step += 1
        self._clipped += training.clip is not None and norm > training.clip
        lrs = {group["name"]: float(group["lr"]) for group in self.optimizer.param_groups}
        clipped = self._clipped / self.step
        watched = {"routers": routers, "loads": self.watched.loads()} if routers else {}
        self.log.write("step", self.step, **numbers, norm=norm, clipped=clipped, lr=lrs, **watched)
        for steps, sizes in self.watched.new_sizes():
            self.log.write("monitor", steps, sizes=sizes)
        for alarm in alarms:
            self.log.write_alarm(alarm)
        seconds, tokens = time.perf_counter() - begun, training.tokens_per_step
        self.log.write_machine("speed", self.step, **self._speed(seconds, tokens))
        return Step(self.step, numbers, norm, clipped, lrs, seconds, tokens, tuple(alarms))

    def _backward(self, rows: Tensor) -> Parts:
        with autocast(self.device, self.precision):
            loss, parts = self.model.loss(self.run_module, rows, self.settings.training.tokens_per_step)
        loss.backward()
        return {**parts, "loss": loss.detach()}

    def _update(self) -> Tensor:
        """Clip the gradients, set the learning rates of this step, and take it."""
        training = self.settings.training
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        norm = clip_(parameters, math.inf if training.clip is None else training.clip)
        factor = lr_factor(
            self.step,
            training.steps,
            warmup=training.warmup,
            schedule=training.schedule,
            final=training.final,
            decay=training.decay,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _numbers(self, parts: Mapping[str, Tensor]) -> dict[str, float]:
        """Losses of a step, over all processes."""
        stacked = torch.stack([part.float() for part in parts.values()])
        return dict(zip(parts, self.processes.sum_(stacked).tolist(), strict=True))

    def _refuse_nan(self, numbers: Mapping[str, float]) -> None:
        if not math.isfinite(numbers["loss"]):
            newest = self._checkpoints.newest()
            kept = f"the last good checkpoint is {newest.path}" if newest else "there is no checkpoint before it"
            raise ValueError(
                f"the loss of step {self.step + 1} is {numbers['loss']}: nothing is saved, and {kept}; a smaller "
                "learning rate or a longer warmup may help"
            )

    def _speed(self, seconds: float, tokens: int) -> dict[str, float | None]:
        peak = peak_operations(self.device, self.precision)
        rate = tokens / seconds
        done = rate * self._operations
        memory = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
        mfu = None if peak is None else done / (peak * self.processes.size)
        return {"seconds": seconds, "tokens_per_second": rate, "mfu": mfu, "memory": memory}

    @torch.no_grad()
    def _validate(self, logged: bool = True) -> float:
        """The mean loss of the validation sequences, in nats per token."""
        count = min(self.settings.data.validation, self._validation.windows)
        mine = range(self.processes.rank, count, self.processes.size)
        at_once = self.settings.training.micro_batch or max(self._share, 1)
        total = torch.zeros((), device=self.device, dtype=torch.float64)
        self.module.eval()
        for first in range(0, len(mine), at_once):
            rows = [self._validation.rows(number, 1) for number in mine[first : first + at_once]]
            batch = torch.cat([torch.from_numpy(row) for row in rows]).to(self.device)
            with autocast(self.device, self.precision):
                total += self.model.token_loss(self.run_module, batch).double()
        self.module.train()
        loss = float(self.processes.sum_(total)) / (count * self.settings.data.sequence)
        if logged:
            self.log.write("validation", self.step, loss=loss, sequences=count)
        return loss

    def _save(self) -> None:
        begun = time.perf_counter()
        state = {
            "clipped": self._clipped,
            "log": self.log.size(),
            "processes": self.processes.size,
            "health": self.watched.state(),
        }
        path = self._checkpoints.save(self.step, self.module, self.optimizer, state)
        self.log.write_machine("checkpoint", self.step, path=str(path), seconds=time.perf_counter() - begun)


def _opened(tokens: str) -> TokenFile:
    return python_tokens() if tokens == "python" else token_file(tokens)


def _precision(asked: str, device: torch.device) -> str:
    if asked != "auto":
        return asked
    return "bfloat16" if device.type == "cuda" else "float32"


def _own_share(sequences: int, processes: Processes) -> int:
    if sequences % processes.size:
        raise ValueError(
            f"the {sequences} sequences of a step do not divide among {processes.size} processes: change "
            "tokens_per_step, or the number of processes"
        )
    return sequences // processes.size


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """SIGTERM and Ctrl-C are noted while the block runs, for the step at hand to end; a second one ends it at once."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.signal(number, before[number])

    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_as_asked(noted: list[int], note: str) -> None:
    """Stop as the signal would have done, and say how to go on."""
    try:
        signal.raise_signal(noted[0] if noted else signal.SIGTERM)
    except KeyboardInterrupt as stop:
        stop.add_note(note)
        raise
