"""``mssp check``: does every term of the dynamics scale as the theory says?"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from mssp._environment import device_text, environment, pick_device
from mssp.cli import flags, layout_check, progress
from mssp.cli.training import loaded, multipliers
from mssp.ladders.mlp import TUNED_WIDTH, MLPLadder, family
from mssp.planning.setting import ADAMW, II, MSSP, SGD, ZERO, Setting

if TYPE_CHECKING:
    from mssp.coordcheck.result import Check
    from mssp.ladders.tuned import Tuned

_WIDTHS = (64, 128, 256, 512)
_WIDTH_OF_STACKS = 64
_WITH_LAYOUT = ("layout", "processes", "regime", "scheme", "optimizer", "readout", "json")
_LR_OF_ONES = 1.0  # of SGD: large enough for its updates not to be rounded away


@dataclass
class CheckCommand:
    """Check how the paper's MLP MoE scales: every term of its dynamics, measured over widths, against the theory.

    Answers two questions. Is it implemented right (does it behave as the theory says this scheme should)? That is the
    verdict, and the exit code. Is it worth scaling (does nothing change with scale)? That is whether it is stable. For
    a model of your own, use mssp.check in Python.

    With --layout it answers another question: is a step of training on several processes that of one device? For steps
    of your own, use mssp.same_step in Python.
    """

    regime: flags.Regime = II
    """I, II or III (default II)"""
    scheme: flags.Scheme = MSSP
    """mssp (default), mup, mup-heuristic, sp, ntp or jiang"""
    optimizer: flags.MaybeOptimizer = None
    """sgd (default; with --layout adamw), adam or adamw"""
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
    data: flags.Data = "clusters"
    """clusters (the default) or spectra, both embedded, tinyimagenet, cifar10, an .npz file or a folder of images"""
    data_gib: flags.MaybePositive = None
    """GiB that --data may take in memory, for files and folders (default 4)"""
    active: flags.MaybeSize = None
    """experts per input where there are eight, growing with their number (default: all)"""
    readout: flags.Readout = ZERO
    """how the readout starts: zero (default), mup (std 1/N) or scheme"""
    multipliers: flags.MaybeMultipliers = ()
    """tuned (for this data; the default), ones (the default for --depths), plain (one learning rate, initial weights
    fan_in^-1/2 at the smallest width), a data set's name, or a file of mssp tune"""
    lr: flags.MaybePositive = None
    """the global learning rate (default: the multipliers' own, for SGD half of it, which keeps small models calm)"""
    as_printed: flags.Switch = False
    """train by the paper's table as printed, and judge by its consistent values"""
    numerics: flags.Switch = False
    """say at which size gradients leave the range of half precision"""
    require_stable: flags.Switch = False
    """exit with 1 also where the desiderata of maximal scale stability do not hold"""
    all: flags.Switch = False
    """show every quantity, also those of which nothing is predicted"""
    device: flags.Device = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1"""
    json: flags.Switch = False
    """print JSON"""
    plot: flags.MaybeFigure = None
    """write a figure of exponents over time: .html, or .svg, .pdf, .png"""
    plot_sizes: flags.MaybeFigure = None
    """write a figure of sizes over the width"""
    plot_evaluation: flags.MaybeFigure = None
    """write the paper's evaluation figure: losses, features, router, and all exponents"""
    layout: flags.MaybeLayout = None
    """compare a step under ddp, fsdp or ep, on CPU processes that it starts, with that of one device"""
    processes: flags.MaybeProcesses = None
    """processes for --layout (default 2)"""

    def run(self) -> int:
        if self.layout is not None:
            self._refuse_what_does_nothing()
            processes = layout_check.PROCESSES if self.processes is None else self.processes
            return layout_check.run(self._setting(), self.layout, processes, self.json)
        if self.processes is not None:
            raise ValueError("--processes is for --layout: say ddp, fsdp or ep")
        check, tuned = self._check(self._setting())
        self._show(check, tuned)
        return 0 if check.passed and (check.stable or not self.require_stable) else 1

    def _setting(self) -> Setting:
        if self.active is not None:
            family(self.regime, TUNED_WIDTH, active=self.active)  # refuses a number that is no share of the experts
        return Setting(
            scheme=self.scheme,
            regime=self.regime,
            optimizer=self.optimizer or (SGD if self.layout is None else ADAMW),
            readout=self.readout,
            as_printed=self.as_printed,
        ).checked()

    def _refuse_what_does_nothing(self) -> None:
        for field in fields(self):
            if field.name not in _WITH_LAYOUT and getattr(self, field.name) != field.default:
                flag = field.name.replace("_", "-")
                used = ", ".join(f"--{name}" for name in _WITH_LAYOUT[1:])
                raise ValueError(f"--{flag} has no effect with --layout, which takes {used}")

    def _check(self, setting: Setting) -> tuple[Check, Tuned]:
        from mssp.coordcheck.ladder_runs import LadderSizes, check_runs

        sizes = LadderSizes(self.widths or ((_WIDTH_OF_STACKS,) if self.depths else _WIDTHS), self.depths)
        device = pick_device(self.device)
        data = loaded(self.data, self.data_gib)
        data.batches(0, self.batch, self.steps)  # refuses more examples than the data have
        corrected = replace(setting, as_printed=False)
        tuned = self._tuned(data.name, corrected)
        runs = sizes.programs(setting, tuned, MLPLadder, data, self.active)
        rules = {size: run.plan for size, run in sizes.programs(corrected, tuned, MLPLadder, data, self.active).items()}
        assert setting.regime is not None
        feed = MLPLadder(setting.regime, data, self.active).feed(device)
        with progress.Progress("training and measuring", len(runs) * self.steps, "updates") as display:
            check = check_runs(
                runs,
                feed,
                steps=self.steps,
                batch=self.batch,
                seeds=range(self.seeds),
                rules=rules,
                on_step=display.advance,
            )
        return check, tuned

    def _tuned(self, data: str, setting: Setting) -> Tuned:
        from mssp.coordcheck.ladder_runs import with_safe_lr
        from mssp.sweep.transfer import Contender

        # A stack of blocks starts from ones: multipliers are tuned with one block, without a residual stream.
        source = self.multipliers or (("ones",) if self.depths else ("tuned",))
        try:
            narrowest = None if self.depths else min(self.widths or _WIDTHS)
            tuned = multipliers(source, data, Contender(setting, self.active), narrowest=narrowest)
        except ValueError as error:
            if self.multipliers:
                raise
            raise ValueError(f"{error}; or use --multipliers ones") from None
        default = with_safe_lr(tuned, setting.optimizer).lr
        if source == ("ones",) and setting.optimizer.follows_gradients:
            default = _LR_OF_ONES
        return replace(tuned, lr=default if self.lr is None else self.lr)

    def _show(self, check: Check, tuned: Tuned) -> None:
        from mssp.coordcheck import numerics, text
        from mssp.report.figures import checks

        if self.json:
            origin = {
                "data": self.data,
                "active": self.active,
                "base_width": tuned.base_width,
                "made_with": environment(device_text(self.device)),
            }
            ranges = {"numerics": numerics.as_json(check)} if self.numerics else {}
            print(json.dumps(check.json() | origin | ranges, indent=1))
        else:
            lines = [*text.lines(check, everything=self.all), *(numerics.lines(check) if self.numerics else [])]
            progress.show_lines(lines, emphasised=[*text.headings(check), "numerics"])
        progress.save_figure(self.plot, lambda: checks.exponents_figure(check))
        progress.save_figure(self.plot_sizes, lambda: checks.sizes_figure(check))
        progress.save_figure(self.plot_evaluation, lambda: checks.evaluation_figure(check))
