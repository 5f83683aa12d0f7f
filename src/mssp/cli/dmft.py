"""``mssp dmft``: what do models grow to?"""

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

_LIMITED = ("regime", "scheme", "lr", "rates", "stds", "readout", "width", "expert_width", "experts", "active")


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
    samples: flags.MaybeSize = None
    """members of each population in one solution (default 80000)"""
    solves: flags.MaybeSize = None
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
        from mssp.dmft.comparison import network_counts
        from mssp.dmft.solution import SAMPLES, SOLVES

        experiment = self._experiment()
        widths = network_counts(self.compare, self.seeds) if self.compare else {}
        for width in widths:
            experiment.shape(width)  # which refuses what is no whole number
        device = pick_device(self.device)
        solves = SOLVES if self.solves is None else self.solves
        samples = SAMPLES if self.samples is None else self.samples
        with progress.Progress("solving", solves, "solutions") as live:
            solution = solve(
                experiment, samples=samples, solves=solves, seed=self.seed, device=device, on_solved=live.advance
            )
        comparison = None
        if widths:
            with progress.Progress("training networks", len(widths), "widths") as live:
                comparison = compare(solution, list(widths), seeds=self.seeds, device=device, on_width=live.advance)
        return self._show(solution, comparison)

    def _experiment(self) -> Experiment:
        from mssp.dmft.examples import LR, example, on_random_inputs

        unseen = self.test_inputs or 0
        if self.plan is not None:
            flags.refuse_beside(self, _LIMITED, "--plan")
            return on_random_inputs(
                self.plan,
                self.inputs,
                self.steps,
                test_inputs=unseen,
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
            test_inputs=unseen,
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
        """The sizes that were said, and the example's for the others."""
        from mssp.dmft.examples import SMALLEST

        said = {
            name: getattr(self, name)
            for name in ("width", "expert_width", "experts", "active")
            if getattr(self, name) is not None
        }
        said.setdefault("active", said.get("experts", SMALLEST[regime].experts))
        return replace(SMALLEST[regime], **said)

    def _show(self, solution: Solution, comparison: Comparison | None) -> int:
        from mssp.dmft import document
        from mssp.dmft.document import Overlay
        from mssp.report.figures.limits import dmft_figure

        if self.json:
            curves = Overlay.of(solution, comparison).json()
            made = {"overlay": curves, "made_with": environment(device_text(self.device))}
            print(json.dumps(document.as_json(solution, comparison) | made, indent=1))
        else:
            verdict = [document.verdict(comparison)] if comparison else []
            progress.show_lines(document.lines(solution, comparison), emphasised=[document.heading(solution), *verdict])
        progress.save_figure(self.plot, lambda: dmft_figure(solution, comparison))
        return 1 if comparison is not None and comparison.verdict == "slow" else 0
