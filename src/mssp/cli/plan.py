"""``mssp plan``: carries hyperparameters tuned on a small model, the base, to a large one, the target."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mssp.cli import flags, progress
from mssp.cli.garbage import no_garbage_collection
from mssp.hf.config_plans import with_notes, with_sides
from mssp.planning import printing
from mssp.planning.configs import FAMILY, gates_sum_to_one, read_config
from mssp.planning.plans import Plan, plan
from mssp.planning.recipe import Recipe, without_plan_warnings
from mssp.planning.shape import Shape

if TYPE_CHECKING:
    from mssp.hf.named_plan import ByName

Reader = Callable[[Path], dict[str, Any]]  # of a Hugging Face config.json
_MISSING = (
    "is missing: all of width, expert-width, experts, active and depth are needed (of a dense model width and depth)"
)
_DENSE = {"width", "depth"}  # the sizes of a model without experts


@dataclass
class ShapeFlags:
    width: flags.MaybeSize = None
    """N, the residual stream"""
    expert_width: flags.MaybeSize = None
    """N_e, the hidden units of one expert"""
    experts: flags.MaybeSize = None
    """M, the routed experts of a layer"""
    active: flags.MaybeSize = None
    """K, the experts that see a token"""
    depth: flags.MaybeSize = None
    """L, the residual blocks"""
    inputs: flags.MaybeSize = None
    """D, the size of a dense input; leave out for token lookups"""


@dataclass
class RecipeFlags:
    betas: flags.MaybeBetas = None
    """Adam's betas"""
    batch: flags.MaybeSize = None
    """batch size"""
    steps: flags.MaybeSize = None
    """training steps"""
    warmup: flags.MaybeCount = None
    """warmup steps"""


@dataclass
class PlanCommand:
    """Carry hyperparameters tuned on a small model (base) to a large one (target).

    Without a base the rules are evaluated on the target itself, as in the paper's MLP experiments.
    """

    lr: flags.MaybePositive = None
    """learning rate tuned at the base (required)"""
    scheme: flags.MaybeScheme = None
    """mssp (default), mup, mup-heuristic, sp, ntp or jiang"""
    optimizer: flags.MaybeOptimizer = None
    """sgd, adam or adamw (default)"""
    regime: flags.MaybeGrowth = None
    """what grows, or any for no regime of the paper; inferred from base to target"""
    eps: flags.MaybePositive = None
    """Adam's eps at the base (default 1e-8)"""
    weight_decay: flags.MaybeNotNegative = None
    """AdamW's weight decay at the base (default 0)"""
    init_std: flags.ByRole = field(default_factory=dict)
    """standard deviations tuned at the base, for all weights or by role"""
    init_mult: flags.ByRole = field(default_factory=dict)
    """tuned init multipliers, for all weights or by role"""
    lr_mult: flags.ByRoleOnly = field(default_factory=dict)
    """tuned learning-rate multipliers by role"""
    aggregation_mult: flags.MaybePositive = None
    """tuned factor on the aggregation multiplier (default 1)"""
    readout: flags.MaybeReadout = None
    """how the readout starts: zero (default), mup (std 1/N) or scheme (the scheme's own)"""
    as_printed: flags.Switch = False
    """the paper's table without our corrections (docs/errata.md)"""
    grad_scale: flags.Switch = False
    """scale gradients instead of eps: the same to Adam, without tiny numbers"""
    decay_by_multiplier: flags.Switch = False
    """divide weight decay by --lr-mult too"""
    decay_gains: flags.Switch = False
    """give gains and biases weight decay too"""
    eps_rule: flags.MaybeEpsRule = None
    """relative (eps as tuned at the base, the default), absolute (as at width 1) or global (one eps for all)"""
    residual_rule: flags.MaybeResidualRule = None
    """the factor of residual branches: depth (1/L, the default) or one (1 at every depth)"""
    gates_sum_to_one: flags.Switch = False
    """the gates of the chosen experts are shares of one; a --target-config says it by itself"""
    extend: flags.MaybePlan = None
    """a plan file to carry to a new target; all but the recipe comes from it"""
    base_config: flags.MaybeConfig = None
    """the base as a Hugging Face config.json"""
    target_config: flags.MaybeConfig = None
    """the target as a Hugging Face config.json"""
    json: flags.Switch = False
    """print the plan file"""
    by_name: flags.Switch = False
    """with --json: the plan of a --target-config by parameter name, for mssp report"""
    markdown: flags.Switch = False
    """print a Markdown table"""
    target: ShapeFlags = field(default_factory=ShapeFlags)
    base: ShapeFlags = field(default_factory=ShapeFlags)
    recipe: RecipeFlags = field(default_factory=RecipeFlags)
    """how the target is trained: a change from the base is warned of"""
    tuned_with: RecipeFlags = field(default_factory=RecipeFlags)
    """how the base was trained, where that differs"""

    def run(self) -> int:
        flags.refuse_both(self, "json", "markdown")
        if self.by_name and not (self.json and self.target_config):
            raise ValueError("--by-name goes with --json and --target-config: tables are by name where they can be")
        read: Reader = cache(read_config)  # reads each file once
        with without_plan_warnings(), no_garbage_collection():  # printed below, without a line of source code
            target_plan = self._planned(read) if self.extend is None else self._extended(self.extend, read)
            named = None if self.json and not self.by_name else self._by_name(target_plan, read)
            target_plan = with_sides(target_plan, *self._configs(read)) if named is None else named.plan
        for warning in target_plan.warnings:
            print(f"mssp: warning: {warning}", file=sys.stderr)
        if self.by_name:
            if named is None:
                raise ValueError(f"{self.target_config} names no {FAMILY}, or transformers is missing: mssp[hf]")
            print(json.dumps(named.json(), indent=1, ensure_ascii=False))
        elif self.json:
            print(target_plan.json())
        elif self.markdown:
            print(target_plan.markdown() if named is None else named.markdown())
        else:
            lines = printing.lines(target_plan) if named is None else named.lines()
            progress.show_lines(lines, emphasised=[printing.title(target_plan)])
        return 0

    def _by_name(self, target_plan: Plan, read: Reader) -> ByName | None:
        """The plan by the names of parameters, or None where no config names a model, or transformers is missing."""
        if self.target_config is None or FAMILY not in read(self.target_config):
            return None
        try:
            import transformers  # noqa: F401
        except ImportError:
            print("mssp: warning: to see the plan by parameter name, install mssp[hf]", file=sys.stderr)
            return None
        from mssp.hf.meta import ConfigError, config_of, on_meta
        from mssp.hf.named_plan import by_name_with_sides
        from mssp.hf.probing import TooLargeError

        try:
            return by_name_with_sides(target_plan, *self._configs(read))
        except ConfigError:
            for path, config in zip((self.target_config, self.base_config), self._configs(read), strict=True):
                try:
                    on_meta(config_of(config))
                except ConfigError as error:
                    raise ValueError(f"{path}: {error}") from None
            raise
        except ValueError as error:
            # The plan by role holds all the same, where base and target are built of different parts.
            if self.by_name or isinstance(error, TooLargeError):
                raise
            print(f"mssp: warning: there is no table by parameter name: {error}", file=sys.stderr)
            return None

    def _configs(self, read: Reader) -> Iterator[dict[str, Any] | None]:
        """The configs of target and base. They are copies: transformers adds keys, and both may be the same file."""
        for path in (self.target_config, self.base_config):
            yield None if path is None else copy.deepcopy(read(path))

    def _planned(self, read: Reader) -> Plan:
        if self.lr is None:
            raise ValueError("--lr is missing: say the learning rate tuned at the base")
        names = (
            "scheme", "optimizer", "regime", "eps", "weight_decay", "readout", "aggregation_mult", "eps_rule",
            "residual_rule",
        )  # fmt: skip
        settings = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        target_plan = plan(
            self._target(read),
            _shape("base", self.base, self.base_config, read),
            lr=self.lr,
            as_printed=self.as_printed,
            grad_scale=self.grad_scale,
            decay_by_multiplier=self.decay_by_multiplier,
            decay_gains=self.decay_gains,
            gates_sum_to_one=self.gates_sum_to_one or self._config_says_shares(read),
            lr_mult=self.lr_mult,
            init_mult=self.init_mult,
            init_std=self.init_std,
            recipe=_recipe(self.recipe),
            tuned_with=_recipe(self.tuned_with),
            **settings,
        )
        return with_notes(target_plan, *self._configs(read))

    def _config_says_shares(self, read: Reader) -> bool:
        return self.target_config is not None and gates_sum_to_one(read(self.target_config))

    def _extended(self, source: Plan, read: Reader) -> Plan:
        """A plan from a file, carried to a new target."""
        allowed = {"target", "target_config", "recipe", "extend", "json", "by_name", "markdown"}
        flags.refuse_what_a_plan_says(self, set(vars(self)) - allowed, "--extend")
        extended = source.extend(self._target(read), _recipe(self.recipe))
        return with_notes(extended, None if self.target_config is None else read(self.target_config))

    def _target(self, read: Reader) -> Shape:
        target = _shape("target", self.target, self.target_config, read)
        if target is None:
            raise ValueError(f"--target.width {_MISSING}, or --target-config")
        return target


def _shape(side: str, flagged: ShapeFlags, config: Path | None, read: Reader) -> Shape | None:
    sizes = {name: size for name, size in asdict(flagged).items() if size is not None}
    if config is not None:
        if set(sizes) - {"inputs"}:
            raise ValueError(f"--{side}-config and --{side}.{next(iter(sizes)).replace('_', '-')} exclude each other")
        sizes = {**_shape_in(config, read).json(), **sizes}
    elif not sizes:
        return None
    is_dense = sizes.keys() - {"inputs"} == _DENSE
    missing = [name for name in asdict(flagged) if name not in sizes and name != "inputs" and not is_dense]
    if missing:
        raise ValueError(f"--{side}.{missing[0].replace('_', '-')} {_MISSING}")
    try:
        return Shape(**sizes)
    except ValueError as error:
        raise ValueError(f"--{side}: {error}") from None


def _shape_in(path: Path, read: Reader) -> Shape:
    config = read(path)
    try:
        return Shape.from_config(config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _recipe(flagged: RecipeFlags) -> Recipe | None:
    entries = asdict(flagged)
    return Recipe(**entries) if any(value is not None for value in entries.values()) else None
