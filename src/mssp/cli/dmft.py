"""``mssp dmft``: what do models grow to?"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mssp._constraints import positive, positive_int
from mssp._environment import device_text
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

    regime: flags.Name = None
    """I, II or III (default II)"""
    scheme: flags.Name = None
    """mssp (default), mup, or another that has a limit"""
    plan: flags.Path = None
    """the limit of this plan, as `mssp plan --optimizer sgd --json` writes it, instead of an example's"""
    inputs: flags.Size = 4
    """random inputs to train on (default 4)"""
    test_inputs: flags.Size = None
    """random inputs that are not trained on"""
    steps: flags.Size = 20
    """updates (default 20)"""
    lr: flags.Number = None
    """the global learning rate (default 0.4)"""
    rates: flags.ByRoleOnly = ()
    """constants of the learning rates by layer, as router=2"""
    stds: flags.ByRoleOnly = ()
    """constants of the initial weights by layer, as embedding=1.5"""
    readout: flags.Name = None
    """how the readout starts: zero (default for mssp) or mup (std 1/N; default for the others)"""
    width: flags.Size = None
    """sizes of one member of the family; what stays while it grows are their ratios, by the regime (default 16)"""
    expert_width: flags.Size = None
    """of that member (default: 8, in Regime II 2)"""
    experts: flags.Size = None
    """of that member (default: 8, in Regime I 4)"""
    active: flags.Size = None
    """experts per input, of that member (default: all)"""
    activation: flags.Name = "tanh"
    """tanh (default), gelu, silu or identity"""
    gate: flags.Name = "sigmoid"
    """sigmoid (default) or softmax"""
    compare: flags.Sizes = ()
    """train finite networks of these widths and compare"""
    seeds: flags.Size = 40
    """networks of the largest width, more of smaller ones (default 40)"""
    samples: flags.Size = None
    """members of each population in one solution (default 80000)"""
    solves: flags.Size = None
    """independent solutions, whose spread is the error (default 6)"""
    seed: int = 0
    """of data and noise (default 0)"""
    device: flags.Name = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1"""
    json: bool = False
    """print JSON"""
    plot: flags.Path = None
    """write a figure: .html, or .svg, .pdf, .png"""

    def run(self) -> int:
        from mssp._environment import pick_device
        from mssp.dmft import compare, solve
        from mssp.dmft.comparison import networks
        from mssp.dmft.solution import SAMPLES, SOLVES

        experiment = self._experiment()
        for width in self.compare:
            positive_int("--compare", width)
        widths = networks(self.compare, positive_int("--seeds", self.seeds or 0)) if self.compare else {}
        for width in widths:
            experiment.shape(width)  # which refuses what is no whole number
        if self.plot is not None:
            from mssp.report import saving

            saving.check_target(self.plot)
        device = pick_device(self.device or "auto")
        solves = positive_int("--solves", SOLVES if self.solves is None else self.solves)
        samples = positive_int("--samples", SAMPLES if self.samples is None else self.samples)
        with progress.counting(solves, "solutions") as one_more:
            solution = solve(
                experiment, samples=samples, solves=solves, seed=self.seed, device=device, on_solved=one_more
            )
        comparison = None
        if widths:
            with progress.counting(len(widths), "widths") as one_more:
                comparison = compare(solution, list(widths), seeds=self.seeds or 0, device=device, on_width=one_more)
        return self._show(solution, comparison)

    def _experiment(self) -> Experiment:
        from mssp.dmft.examples import LR, example, on_random_inputs

        inputs, steps = positive_int("--inputs", self.inputs or 0), positive_int("--steps", self.steps or 0)
        unseen = 0 if self.test_inputs is None else positive_int("--test-inputs", self.test_inputs)
        activation, gate = self.activation or "", self.gate or ""
        if self.plan is not None:
            for name in _LIMITED:
                if getattr(self, name) not in (None, ()):
                    raise ValueError(f"--{name.replace('_', '-')} does not go with --plan: the plan file says it")
            plan = flags.plan_in(self.plan)
            return on_random_inputs(
                plan, inputs, steps, test_inputs=unseen, activation=activation, gate=gate, seed=self.seed
            )
        regime = flags.regime_of(self.regime or II.name)
        setting = Setting.of(self.scheme or MSSP, regime, SGD).checked()
        if self.readout is not None:
            flags.readout_of(self.readout)
        return example(
            regime,
            setting.scheme,
            inputs=inputs,
            steps=steps,
            test_inputs=unseen,
            lr=LR if self.lr is None else positive("--lr", self.lr),
            rates=_by_layer("--rates", self.rates),
            stds=_by_layer("--stds", self.stds),
            readout=self.readout,
            smallest=self._member(regime),
            activation=activation,
            gate=gate,
            data_seed=self.seed,
        )

    def _member(self, regime: Regime) -> Shape:
        """The sizes that were said, and the example's for the others."""
        from mssp.dmft.examples import SMALLEST

        said = {
            name: positive_int(f"--{name.replace('_', '-')}", getattr(self, name))
            for name in ("width", "expert_width", "experts", "active")
            if getattr(self, name) is not None
        }
        said.setdefault("active", said.get("experts", SMALLEST[regime].experts))
        return replace(SMALLEST[regime], **said)

    def _show(self, solution: Solution, comparison: Comparison | None) -> int:
        from mssp._environment import environment
        from mssp.dmft import document
        from mssp.dmft.document import Overlay

        if self.json:
            curves = Overlay.of(solution, comparison).json()
            made = {"overlay": curves, "made_with": environment(device_text(self.device or "auto"))}
            print(json.dumps(document.as_json(solution, comparison) | made, indent=1))
        else:
            verdict = [document.verdict(comparison)] if comparison else []
            progress.show_lines(document.lines(solution, comparison), emphasised=[document.heading(solution), *verdict])
        if self.plot is not None:
            from mssp.report.figures.limits import dmft_figure
            from mssp.report.saving import save

            save(dmft_figure(solution, comparison), self.plot)
            print(f"figure in {self.plot}", file=sys.stderr)
        return 1 if comparison is not None and comparison.verdict == "slow" else 0


def _by_layer(flag: str, given: Sequence[Sequence[str]]) -> dict[str, float]:
    found = flags.by_role(flag, given, everywhere="")
    if "" in found:
        raise ValueError(f"{flag} takes ROLE=NUMBER, as router=2, got {found['']:g}")
    return found
