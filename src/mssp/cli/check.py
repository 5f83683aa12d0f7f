"""``mssp check``: does every term of the dynamics scale as the theory says?"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mssp._constraints import positive, positive_int
from mssp._environment import device_text
from mssp.cli import flags, progress
from mssp.cli.flags import multipliers
from mssp.ladders.mlp import TUNED_WIDTH, MLPLadder, family
from mssp.planning.setting import Setting

if TYPE_CHECKING:
    import torch

    from mssp.coordcheck.ladder_runs import LadderSizes
    from mssp.coordcheck.result import Check
    from mssp.ladders.tuned import Tuned

_DEPTH_WIDTH = 64
_NARROWEST, *_WIDER = 64, 128, 256, 512
_LR_OF_ONES = 1.0


@dataclass
class CheckCommand:
    """Check how the paper's MLP MoE scales: every term of its dynamics, measured over widths, against the theory.

    Answers two questions. Is it implemented right (does it behave as the theory says this scheme should)? That is the
    verdict, and the exit code. Is it worth scaling (does nothing change with scale)? That is whether it is stable. For
    a model of your own, use mssp.check in Python.
    """

    regime: flags.Name = "II"
    """I, II or III (default II)"""
    scheme: flags.Name = "mssp"
    """mssp (default), mup, mup-heuristic, sp, ntp or jiang"""
    optimizer: flags.Name = "sgd"
    """sgd (default), adam or adamw"""
    widths: flags.Sizes = ()
    """widths N (default 64 128 256 512; with --depths, the one width, 64)"""
    depths: flags.Sizes = ()
    """depths L of a stack of residual blocks, instead of widths"""
    steps: flags.Size = 20
    """updates to take, and to measure after (default 20)"""
    seeds: flags.Size = 3
    """models of each size, that differ in initial weights and data (default 3)"""
    batch: flags.Size = 100
    """examples per step (default 100)"""
    data: flags.Name = "clusters"
    """clusters (the default) or spectra, both embedded, tinyimagenet, cifar10, an .npz file or a folder of images"""
    active: flags.Size = None
    """experts per input where there are eight, growing with their number (default: all)"""
    readout: flags.Name = "zero"
    """how the readout starts: zero (default), mup (std 1/N) or scheme"""
    multipliers: flags.Names = ()
    """tuned (for this data; the default), ones (the default for --depths), plain (one learning rate, initial weights
    fan_in^-1/2 at the smallest width), a data set's name, or a file of mssp tune"""
    lr: flags.Number = None
    """the global learning rate (default: the multipliers' own, for SGD half of it, which keeps small models calm)"""
    as_printed: bool = False
    """train by the paper's table as printed, and judge by its consistent values"""
    numerics: bool = False
    """say at which size gradients leave the range of half precision"""
    require_stable: bool = False
    """exit with 1 also where the desiderata of maximal scale stability do not hold"""
    all: bool = False
    """show every quantity, also those of which nothing is predicted"""
    device: flags.Name = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1"""
    json: bool = False
    """print JSON"""
    plot: flags.Path = None
    """write a figure of exponents over time: .html, or .svg, .pdf, .png"""
    plot_sizes: flags.Path = None
    """write a figure of sizes over the width"""
    plot_evaluation: flags.Path = None
    """write the paper's evaluation figure: losses, features, router, and all exponents"""

    def run(self) -> int:
        from mssp._environment import pick_device

        setting = self._setting()
        sizes = self._sizes()
        for figure in (self.plot, self.plot_sizes, self.plot_evaluation):
            if figure is not None:
                from mssp.report import saving

                saving.check_target(figure)
        found, tuned = self._checked(setting, sizes, pick_device(self.device or "auto"))
        self._show(found, tuned)
        return 0 if found.passed and (found.stable or not self.require_stable) else 1

    def _setting(self) -> Setting:
        regime = flags.regime_of(self.regime)
        asked = Setting.of(self.scheme or "", regime, self.optimizer or "", as_printed=self.as_printed)
        asked = replace(asked, readout=flags.readout_of(self.readout))
        if self.active is not None:
            family(regime, TUNED_WIDTH, active=self.active)  # which refuses a share that is none
        return asked.checked()

    def _sizes(self) -> LadderSizes:
        from mssp.coordcheck.ladder_runs import LadderSizes

        default = (_DEPTH_WIDTH,) if self.depths else (_NARROWEST, *_WIDER)
        for flag, given in (("--widths", self.widths), ("--depths", self.depths)):
            for size in given:
                positive_int(flag, size)
        return LadderSizes(tuple(self.widths) or default, tuple(self.depths))

    def _checked(self, setting: Setting, sizes: LadderSizes, device: torch.device) -> tuple[Check, Tuned]:
        from mssp.coordcheck.ladder_runs import check_runs
        from mssp.data import load

        steps, batch = positive_int("--steps", self.steps or 0), positive_int("--batch", self.batch or 0)
        seeds = positive_int("--seeds", self.seeds or 0)
        data = load(self.data or "clusters")
        data.batches(0, batch, steps)  # which refuses more than there is
        corrected = replace(setting, as_printed=False)
        tuned = self._tuned(data.name, corrected)
        runs = sizes.programs(setting, tuned, MLPLadder, data, self.active)
        rules = {size: run.plan for size, run in sizes.programs(corrected, tuned, MLPLadder, data, self.active).items()}
        assert setting.regime is not None
        feed = MLPLadder(setting.regime, data, self.active).feed(device)
        with progress.counting(len(runs) * steps, "updates") as one_more:
            found = check_runs(runs, feed, steps=steps, batch=batch, seeds=range(seeds), rules=rules, on_step=one_more)
        return found, tuned

    def _tuned(self, data: str, setting: Setting) -> Tuned:
        from mssp.coordcheck.ladder_runs import with_safe_lr
        from mssp.sweep.transfer import Contender

        # What was tuned, was for one block without a residual stream.
        asked = self.multipliers or (("ones",) if self.depths else ("tuned",))
        try:
            narrowest = None if self.depths else min(self.widths or (_NARROWEST,))
            found = multipliers(asked, data, Contender(setting, self.active), narrowest=narrowest)
        except ValueError as error:
            if self.multipliers:
                raise
            raise ValueError(f"{error}; or use --multipliers ones") from None
        default = with_safe_lr(found, setting.optimizer).lr
        if asked == ("ones",) and setting.optimizer.follows_gradients:
            default = _LR_OF_ONES  # large enough for its updates not to be rounded away
        return replace(found, lr=default if self.lr is None else positive("--lr", self.lr))

    def _show(self, found: Check, tuned: Tuned) -> None:
        from mssp._environment import environment
        from mssp.coordcheck import numerics, text

        if self.json:
            made = {
                "data": self.data,
                "active": self.active,
                "base_width": tuned.base_width,
                "made_with": environment(device_text(self.device or "auto")),
            }
            more = {"numerics": numerics.as_json(found)} if self.numerics else {}
            print(json.dumps(found.json() | made | more, indent=1))
        else:
            lines = [*text.lines(found, everything=self.all), *(numerics.lines(found) if self.numerics else [])]
            progress.show_lines(lines, emphasised=[*text.headings(found), "numerics"])
        if not (self.plot or self.plot_sizes or self.plot_evaluation):
            return
        from mssp.report.figures import checks
        from mssp.report.saving import save

        for path, draw in (
            (self.plot, checks.exponents_figure),
            (self.plot_sizes, checks.sizes_figure),
            (self.plot_evaluation, checks.evaluation_figure),
        ):
            if path is not None:
                save(draw(found), path)
                print(f"figure in {path}", file=sys.stderr)
