"""Solves the equations of the limit in one pass forward in time, without iterations.

Every kernel up to time t is computed from fields up to time t, and every field at time t from kernels up to time t. So
a step of the solution is a forward and a backward pass, as in a network, through sites instead of layers. A site is the
equations of one layer's neurons, or of the experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mssp.dmft.constants import Constants
from mssp.dmft.experiment import Experiment
from mssp.dmft.fields import History
from mssp.dmft.kernels import Kernel
from mssp.dmft.observables import Observables, equal_times
from mssp.dmft.run import Passed, Samples, Seen, Solving
from mssp.dmft.sites.experts import ExpertState
from mssp.dmft.sites.features import Features
from mssp.dmft.sites.readout import Readout
from mssp.dmft.sites.regime_one import RegimeOne
from mssp.dmft.sites.regime_three import RegimeThree
from mssp.dmft.sites.regime_two import RegimeTwo
from mssp.planning.setting import II, I


class Site(Protocol):
    """The site of the experts, which each regime has its own class for."""

    experts: ExpertState
    g_psi: History
    passed: Passed
    output_kernel: Kernel
    gradient_kernel: Kernel
    router_kernel: Kernel

    def forward(self, features: Features) -> Seen: ...
    def backward(self, readout: Readout) -> Seen: ...
    def drive(self) -> Tensor | None: ...


_DIVERGED = 1e3  # a loss that is so many times the first one has diverged
_HEAVY = 0.1  # the largest share of one expert in a mean over many experts that can be trusted


@dataclass(frozen=True)
class Marched:
    """One solution, with one draw of all noise.

    Args:
        contradictions: the differences between the overlaps that the two sides of a layer of weights compute.
        heavy_from: the first step at which one of many experts has a large share of the router's gradient, or None.
    """

    observables: Observables
    contradictions: Observables
    heavy_from: int | None


@torch.no_grad()
def march(experiment: Experiment, constants: Constants, samples: Samples, seed: int, device: torch.device) -> Marched:
    """Solves the limit once, with one draw of all noise."""
    run = Solving(experiment, constants, samples, seed, device)
    features, readout = Features(run), Readout(run)
    site = _site(run, features)
    logits, layer_overlaps, expert_overlaps, heavy_from = [], [], [], None
    for step in range(experiment.steps + 1):
        run.times.step = step
        try:
            features.forward()
            readout.forward(*site.forward(features))
            _check_loss(run, readout)
            features.backward(*site.backward(readout), drive=site.drive())
        except FloatingPointError as error:
            raise ValueError(_diverged(run, str(error), heavy_from)) from None
        readout.step()
        layer_overlaps.append(Passed(readout.f[step], features.pulled))
        expert_overlaps.append(site.passed)
        logits.append(site.experts.psi.value.flatten(1))
        if heavy_from is None and samples.experts > 1 and site.g_psi.largest_share() > _HEAVY + 20 / samples.experts:
            heavy_from = step
    observables = _observables(run, features, site, readout, torch.stack(logits))
    return Marched(observables, _contradictions(layer_overlaps, expert_overlaps), heavy_from)


def _contradictions(layers: list[Passed], experts: list[Passed]) -> Observables:
    """The difference between the overlaps that layers and experts compute, relative to their size over all times."""
    contradictions = {}
    for name in Passed._fields:
        outside, inside = (torch.stack([getattr(passed, name) for passed in side]) for side in (layers, experts))
        contradictions[name] = ((outside - inside) / outside.norm().clamp_min(1e-300)).cpu().numpy()
    return contradictions


def _site(run: Solving, features: Features) -> Site:
    regime = run.experiment.plan.setting.regime
    if regime is I:
        return RegimeOne(run, features)
    return RegimeTwo(run) if regime is II else RegimeThree(run)


def _check_loss(run: Solving, readout: Readout) -> None:
    losses = run.loss(readout.f[[0, run.times.step]])
    if not math.isfinite(float(losses[1])) or losses[1] > _DIVERGED * losses[0]:
        raise FloatingPointError(f"the loss went from {losses[0]:.3g} to {losses[1]:.3g}")


def _diverged(run: Solving, how: str, heavy_from: int | None) -> str:
    """The message for a solution that diverges at the present step."""
    step, lr, gate = run.times.step, run.experiment.plan.lr, run.experiment.gate
    if heavy_from is not None:
        return (
            f"there is no limit here: from step {heavy_from} on, one of {run.samples.experts} experts carries much of "
            f"the router's gradient, and at step {step} {how}; {gate} gates have heavy tails: use sigmoid, or less lr"
        )
    return f"gradient descent diverges at step {step}: {how}; use a learning rate below {lr:g}"


def _observables(run: Solving, features: Features, site: Site, readout: Readout, psi: Tensor) -> Observables:
    """All observables, from the sites and the logits ψ, [steps + 1, P, experts]."""
    tensors = {
        "f": readout.f,
        "loss": run.loss(readout.f),
        "phi1": features.kernel.matrix,
        "g1": features.gradient_kernel.matrix,
        "phi3": readout.kernel,
        "g3": readout.gradient_kernel,
        "router_mean": psi.mean(-1),
        "router_variance": psi.var(-1) if psi.shape[-1] > 1 else torch.zeros_like(psi[..., 0]),
    }
    over_rows = {"phi2": site.output_kernel, "g2": site.gradient_kernel, "router_gradient": site.router_kernel}
    arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    blocks = {name: equal_times(kernel.matrix.cpu().numpy(), run.times.inputs) for name, kernel in over_rows.items()}
    return arrays | blocks
