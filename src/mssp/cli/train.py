"""``mssp train``: trains a Transformer MoE by a plan, on one device or many, and goes on wherever it was stopped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mssp._environment import pick_device
from mssp._tables import align
from mssp.cli import flags, progress
from mssp.cli.plan import ShapeFlags

if TYPE_CHECKING:
    from mssp.planning.plans import Plan
    from mssp.train import RunSettings, Step, Training

# Which entry of a recipe a flag stands for.
_ENTRIES = {
    "lr": "plan.lr", "scheme": "plan.scheme", "regime": "plan.regime", "weight_decay": "plan.weight_decay",
    "lr_mult": "plan.lr_mult", "init_mult": "plan.init_mult", "base_config": "plan.base",
    "data": "data.tokens", "sequence": "data.sequence", "passes": "data.passes", "validation": "data.validation",
    "steps": "training.steps", "tokens_per_step": "training.tokens_per_step", "micro_batch": "training.micro_batch",
    "warmup": "training.warmup", "schedule": "training.schedule", "clip": "training.clip",
    "balance": "training.balance", "z_loss": "training.z", "precision": "training.precision",
    "compile": "training.compile", "checkpointing": "training.checkpointing", "layout": "training.layout",
    "seed": "training.seed",
    "validate_every": "training.validate_every", "save_every": "training.save_every", "keep": "training.keep",
    "routers_every": "watch.routers_every", "monitor_every": "watch.monitor_every",
}  # fmt: skip


@dataclass
class GPTFlags:
    width: flags.MaybeSize = None
    """N, the width of the model"""
    expert_width: flags.MaybeSize = None
    """N_e, the hidden units of one expert"""
    experts: flags.MaybeSize = None
    """M, the routed experts of a layer"""
    active: flags.MaybeSize = None
    """K, the experts that see a token"""
    depth: flags.MaybeSize = None
    """L, the blocks"""
    moe_every: flags.MaybeSize = None
    """every n-th block has experts, the others a dense layer"""
    head: flags.MaybeSize = None
    """the size of one attention head"""
    vocabulary: flags.MaybeSize = None
    """tokens that the model knows"""


@dataclass
class TrainCommand:
    """Train a Transformer MoE by a plan: a GPT of mssp.nn, or any Hugging Face MoE, on token files.

    Without flags, a small GPT learns the source of Python's standard library, as bytes, on two CPU cores in some two
    minutes. Large models start under torchrun: torchrun --nproc-per-node 8 -m mssp train ...
    """

    recipe: flags.MaybeText = None
    """a recipe of the package or a .toml file (default bytes); list shows those of the package"""
    out: flags.RunFolder = Path("run")
    """the folder that the run is kept in (default run)"""
    resume: flags.Switch = False
    """go on with the run in --out from its newest checkpoint"""
    model: flags.MaybeText = None
    """gpt, or the config.json of a Hugging Face model"""
    gpt: GPTFlags = field(default_factory=GPTFlags)
    """sizes of the GPT, where they differ from the recipe's"""
    plan: flags.MaybePlan = None
    """a plan file; without it, the plan is made from --base, --lr and the recipe"""
    base: ShapeFlags = field(default_factory=ShapeFlags)
    """sizes of the small model that was tuned"""
    base_config: flags.MaybeConfig = None
    """the same as a Hugging Face config.json"""
    lr: flags.MaybePositive = None
    """learning rate tuned at the base"""
    scheme: flags.MaybeScheme = None
    """mssp (default), mup, mup-heuristic, sp, ntp or jiang"""
    regime: flags.MaybeGrowth = None
    """what grows; inferred where there is a base"""
    weight_decay: flags.MaybeNotNegative = None
    """AdamW's weight decay at the base"""
    lr_mult: flags.ByRoleOnly = field(default_factory=dict)
    """tuned learning-rate multipliers by role"""
    init_mult: flags.ByRole = field(default_factory=dict)
    """tuned init multipliers, for all weights or by role"""
    data: flags.MaybeText = None
    """a token file of mssp data prepare, or python: the standard library's source as bytes"""
    sequence: flags.MaybeSize = None
    """predicted tokens in a sequence"""
    passes: flags.MaybeSize = None
    """how often the text may be read"""
    validation: flags.MaybeSize = None
    """sequences that every validation computes the loss of"""
    steps: flags.MaybeSize = None
    """updates"""
    tokens_per_step: flags.MaybeSize = None
    """tokens of an update, over all micro-batches and processes"""
    micro_batch: flags.MaybeSize = None
    """sequences that a process computes at once (default: all of its share)"""
    warmup: flags.MaybeCount = None
    """steps in which the learning rate rises"""
    schedule: flags.MaybeSchedule = None
    """constant, cosine or wsd"""
    clip: flags.MaybePositive = None
    """the largest norm of a step's gradients"""
    balance: flags.MaybeNotNegative = None
    """weight of the load-balancing loss of a GPT"""
    z_loss: flags.MaybeNotNegative = None
    """weight of the router's z-loss of a GPT"""
    precision: flags.MaybePrecision = None
    """auto (bfloat16 on GPUs), float32 or bfloat16"""
    compile: flags.Switch = False
    """compile the model by torch.compile"""
    checkpointing: flags.Switch = False
    """recompute blocks in the backward pass, for less memory"""
    layout: flags.MaybeLayout = None
    """how several processes share the model: ddp (default), fsdp or ep"""
    seed: flags.MaybeSeed = None
    """of initial weights and the order of data"""
    validate_every: flags.MaybeSize = None
    """steps between two validations"""
    save_every: flags.MaybeSize = None
    """steps between two checkpoints"""
    keep: flags.MaybeSize = None
    """checkpoints that are kept"""
    routers_every: flags.MaybeSize = None
    """steps between two looks at the health of the routers"""
    monitor_every: flags.MaybeSize = None
    """steps between two measurements of all terms"""
    track: flags.Trackers = ()
    """also log to tensorboard, wandb or trackio"""
    device: flags.Device = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1"""

    def run(self) -> int:
        if self.recipe == "list":
            return _list_recipes()
        from mssp.train.processes import joined_processes, own_device
        from mssp.train.trackers import sinks

        device = own_device(pick_device(self.device))
        settings = self.settings()
        with ExitStack() as stack:
            processes = stack.enter_context(joined_processes(device))
            from mssp.train import Training

            display = stack.enter_context(Display(settings, processes.is_first))
            to = sinks(self.track, self.out, settings.json()) if processes.is_first else ()
            training = Training(
                settings, self.out, processes=processes, device=device, resume=self.resume, planned=self._plan(),
                sinks=to, watch=display.stepped,
            )  # fmt: skip
            display.begins(training)
            ended = training.run()
        if processes.is_first:
            print(
                f"{ended.folder}: {ended.step} steps, validation loss {ended.validation:.4f} nats per token; "
                f"mssp generate --checkpoint {ended.folder} goes on from here"
            )
        if processes.several:
            # All is saved and said by now, and threads of gloo sometimes abort a process that exits.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        return 0

    def settings(self) -> RunSettings:
        """The recipe, or the settings of a run that goes on, with what the flags say instead."""
        from mssp.train.run_folder import Kept
        from mssp.train.settings import DEFAULT_RECIPE, RunSettings, read_recipe

        goes_on = self.resume and self.recipe is None
        document = Kept.read(self.out).settings.json() if goes_on else read_recipe(self.recipe or DEFAULT_RECIPE)
        self._set_model(document)
        if self.plan is not None:
            document["plan"] = {}
        for flag, entry in self._said():
            section, _, key = entry.partition(".")
            table = document.setdefault(section, {})
            written = _written(getattr(self, flag))
            table[key] = {**table.get(key, {}), **written} if isinstance(written, Mapping) else written
        sizes = {name: size for name, size in vars(self.base).items() if size is not None}
        if sizes:
            document["plan"] = {**document.get("plan", {}), "base": sizes}
        return RunSettings.of(document)

    def _said(self) -> Iterator[tuple[str, str]]:
        """The flags that were given, each with the entry of a recipe that it stands for."""
        for flag, entry in _ENTRIES.items():
            value = getattr(self, flag)
            if not (value is None or value is False or (isinstance(value, Mapping | tuple) and not value)):
                yield flag, entry

    def _set_model(self, document: dict[str, Any]) -> None:
        """Another kind of model takes neither sizes nor plan of the recipe's."""
        sizes = {name: size for name, size in vars(self.gpt).items() if size is not None}
        if self.model not in (None, "gpt"):
            if sizes:
                raise ValueError("--gpt goes with --model gpt: a Hugging Face config has its own sizes")
            if not Path(str(self.model)).exists():
                raise ValueError(f"--model must be gpt or a config.json that is there, got '{self.model}'")
            document["model"], document["plan"] = {"config": str(self.model)}, {}
        elif sizes:
            document["model"] = {**document.get("model", {}), **sizes}

    def _plan(self) -> Plan | None:
        if self.plan is not None:
            of_plans = {flag for flag, entry in _ENTRIES.items() if entry.startswith("plan.")}
            flags.refuse_what_a_plan_says(self, {"base", *of_plans}, "--plan")
        elif self.resume:
            from mssp.train.run_folder import PLAN

            says_another = any(entry.startswith("plan.") for _, entry in self._said()) or self.base != ShapeFlags()
            goes_on = self.recipe is None and not says_another
            return flags.read_plan(self.out / PLAN) if goes_on else None
        return self.plan


def _written(value: Any) -> Any:
    """The value of a flag as recipe files have it."""
    if isinstance(value, Path):
        return str(value)
    return value.name if hasattr(value, "name") else dict(value) if isinstance(value, Mapping) else value


def _list_recipes() -> int:
    from mssp.train.settings import listed_recipes

    progress.show_lines(align([["recipe", "what it is"], *([name, about] for name, about in listed_recipes().items())]))
    return 0


class Display:
    """What a run shows while it trains: a live line in a terminal, a plain line now and then elsewhere."""

    def __init__(self, settings: RunSettings, shown: bool) -> None:
        self._settings, self._shown = settings, shown
        self._bar = progress.Progress("training", settings.training.steps, "steps")
        self._every = max(1, min(settings.training.steps // 20, 50))

    def __enter__(self) -> Display:
        if self._shown:
            self._bar.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._shown:
            self._bar.__exit__(*exception)

    def begins(self, training: Training) -> None:
        if self._shown:
            print(f"{training.title}", file=sys.stderr)
            self._bar.advance(training.step)

    def stepped(self, step: Step) -> None:
        if not self._shown:
            return
        rate = step.tokens / step.seconds
        for alarm in step.alarms:
            print(f"mssp: warning: {alarm}", file=sys.stderr, flush=True)
        text = f"loss {step.parts['loss']:.4f}, {rate:,.0f} tokens/s"
        self._bar.advance(1, text)
        if not sys.stderr.isatty() and (step.step % self._every == 0 or step.step == 1):
            print(
                f"step {step.step}/{self._settings.training.steps}  {text}, norm {step.norm:.3g}, "
                f"clipped {step.clipped:.0%}",
                file=sys.stderr,
                flush=True,
            )
