"""``mssp dmft``: the limit that models approach as they grow, by dynamical mean-field theory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mssp._environment import device_text, environment, pick_device
from mssp.cli import flags, progress
from mssp.planning.setting import II, MSSP, SGD, Regime, Setting
from mssp.planning.shape import Shape

if TYPE_CHECKING:
    from mssp.dmft import Comparison, Experiment, Solution

# Flags that a plan answers. They are None where they are left out, so that --plan can refuse the ones that were given.
_IN_PLAN = ("regime", "scheme", "lr", "rates", "stds", "readout", "width", "expert_width", "experts", "active")


@dataclass
class DmftCommand:
    """Solve the limit of infinitely large MLP MoEs in training, by dynamical mean-field theory.

    Full-batch gradient descent on a few inputs: outputs, loss, kernels of features and gradients, the router, each with
    its Monte Carlo error. --compare trains finite networks of the same plan and says how fast they come closer. See
    docs/dmft.md for what is solved.
    """

    regime: flags.MaybeRegime = None
    """I, II or III (default II)"""
    scheme: flags.MaybeScheme = None
    """mssp (default), mup, or another that has a limit"""
    plan: flags.MaybePlan = None
    """the limit of this plan, as `mssp plan --optimizer sgd --json` writes it, instead of an example's"""
    inputs: flags.Size = 4
    """random inputs to train on (default 4)"""
    test_inputs: flags.MaybeSize = None
    """random inputs that are not trained on"""
    steps: flags.Size = 20
    """updates (default 20)"""
    lr: flags.MaybePositive = None
    """the global learning rate (default 0.4)"""
    rates: flags.ByRoleOnly = field(default_factory=dict)
    """constants of the learning rates by layer, as router=2"""
    stds: flags.ByRoleOnly = field(default_factory=dict)
    """constants of the initial weights by layer, as embedding=1.5"""
    readout: flags.MaybeReadout = None
    """how the readout starts: zero (default for mssp) or mup (std 1/N; default for the others)"""
    width: flags.MaybeSize = None
    """sizes of one member of the family; what stays while it grows are their ratios, by the regime (default 16)"""
    expert_width: flags.MaybeSize = None
    """of that member (default: 8, in Regime II 2)"""
    experts: flags.MaybeSize = None
    """of that member (default: 8, in Regime I 4)"""
    active: flags.MaybeSize = None
    """experts per input, of that member (default: all)"""
    activation: flags.Activation = "tanh"
    """tanh (default), gelu, silu or identity"""
    gate: flags.Gate = "sigmoid"
    """sigmoid (default) or softmax"""
    compare: flags.Sizes = ()
    """train finite networks of these widths and compare"""
    seeds: flags.Size = 40
    """networks of the largest width, more of smaller ones (default 40)"""
    samples: flags.Size = 80_000
    """members of each population in one solution (default 80000)"""
    solves: flags.Size = 6
    """independent solutions, whose spread is the error (default 6)"""
    seed: flags.Seed = 0
    """of data and noise (default 0)"""
    device: flags.Device = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1"""
    json: flags.Switch = False
    """print JSON"""
    plot: flags.MaybeFigure = None
    """write a figure: .html, or .svg, .pdf, .png"""

    def run(self) -> int:
        from mssp.dmft import compare, solve
        from mssp.dmft.comparison import check_networks

        experiment, device, widths = self._experiment(), pick_device(self.device), sorted(set(self.compare))
        if widths:
            check_networks(experiment, widths, self.seeds, device)
        with progress.Progress("solving", self.solves, "solutions") as display:
            solution = solve(
                experiment,
                samples=self.samples,
                solves=self.solves,
                seed=self.seed,
                device=device,
                on_solved=display.advance,
            )
        comparison = None
        if widths:
            with progress.Progress("training networks", len(widths), "widths") as display:
                comparison = compare(solution, widths, seeds=self.seeds, device=device, on_width=display.advance)
        return self._show(solution, comparison)

    def _experiment(self) -> Experiment:
        from mssp.dmft.examples import LR, example, on_random_inputs

        test_inputs = self.test_inputs or 0  # None by default, since the flag itself refuses 0
        if self.plan is not None:
            flags.refuse_what_a_plan_says(self, _IN_PLAN, "--plan")
            return on_random_inputs(
                self.plan,
                self.inputs,
                self.steps,
                test_inputs=test_inputs,
                activation=self.activation,
                gate=self.gate,
                seed=self.seed,
            )
        setting = Setting(scheme=self.scheme or MSSP, regime=self.regime or II, optimizer=SGD).checked()
        assert setting.regime is not None
        return example(
            setting.regime,
            setting.scheme,
            inputs=self.inputs,
            steps=self.steps,
            test_inputs=test_inputs,
            lr=self.lr or LR,
            rates=self.rates,
            stds=self.stds,
            readout=self.readout,
            smallest=self._member(setting.regime),
            activation=self.activation,
            gate=self.gate,
            data_seed=self.seed,
        )

    def _member(self, regime: Regime) -> Shape:
        """The member of the family of models: its sizes by flags, and the example's sizes where a flag is left out."""
        from mssp.dmft.examples import SMALLEST

        names = ("width", "expert_width", "experts", "active")
        sizes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(SMALLEST[regime], **{"active": self.experts or SMALLEST[regime].experts, **sizes})

    def _show(self, solution: Solution, comparison: Comparison | None) -> int:
        from mssp.dmft import document
        from mssp.dmft.document import Overlay
        from mssp.report.figures.limits import dmft_figure

        if self.json:
            overlay = {"overlay": Overlay.of(solution, comparison).json()}
            origin = {"made_with": environment(device_text(self.device))}
            print(json.dumps(document.as_json(solution, comparison) | overlay | origin, indent=1))
        else:
            verdict = [document.verdict(comparison)] if comparison else []
            progress.show_lines(document.lines(solution, comparison), emphasised=[document.heading(solution), *verdict])
        progress.save_figure(self.plot, lambda: dmft_figure(solution, comparison))
        return 1 if comparison is not None and comparison.verdict == "slow" else 0
