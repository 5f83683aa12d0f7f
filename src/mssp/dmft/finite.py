"""The same experiment with finite networks: planned, initialised and trained by the code that users run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mssp.dmft.experiment import Experiment
from mssp.dmft.observables import Observables
from mssp.nn import mlp
from mssp.nn.activations import activation
from mssp.replicas.lockstep import Lockstep
from mssp.replicas.mlp import MLPProgram
from mssp.replicas.program import Replica
from mssp.replicas.training import bytes_per_replica, even_parts, replicas_that_fit

# What networks trained together may take: the same for every machine of a kind, so that their last digits are too.
_BYTES_AT_ONCE = {"cpu": 2 << 30, "cuda": 24 << 30}


def trained(experiment: Experiment, width: int, seeds: Sequence[int], device: torch.device) -> list[Observables]:
    """What each network of that width shows in training, one for every seed."""
    program = MLPProgram(experiment.config(width))
    plan = experiment.member(width)
    each = bytes_per_replica(program, plan.optimizer, len(experiment.all_inputs), device)
    fitting = replicas_that_fit(program, plan.optimizer, len(experiment.all_inputs), device)
    at_once = max(1, min(_BYTES_AT_ONCE[device.type] // each, fitting))
    found: list[Observables] = []
    for part in even_parts(len(seeds), at_once):
        lockstep = Lockstep(program, [Replica(plan, seed) for seed in seeds[part]], device=device)
        found += _watched(experiment, lockstep)
    return found


def _watched(experiment: Experiment, lockstep: Lockstep) -> list[Observables]:
    device, replicas = lockstep.device, len(lockstep.replicas)
    trained = len(experiment.inputs)
    x = torch.from_numpy(experiment.all_inputs).float().to(device)
    y = torch.from_numpy(experiment.targets).float().to(device)
    batch, targets = x[:trained].unsqueeze(0), y.view(1, -1, 1).expand(len(lockstep.seeds), -1, -1)
    batch = batch.expand(len(lockstep.seeds), -1, -1)
    states = []
    for step in range(experiment.steps + 1):
        states.append(_state(experiment, lockstep, x))
        if step < experiment.steps:
            lockstep.step(batch, targets)
    fields = {name: torch.stack([state[name] for state in states], 1) for name in states[0]}  # [R, steps + 1, ...]
    f = fields["f"]
    loss = 0.5 * (f[:, :, :trained] - y).square().mean(-1)
    kernels = {
        "phi1": _gram(fields["features"].flatten(1, 2)),
        "phi3": _gram(fields["aggregate"].flatten(1, 2)),
        "g1": _gram(fields["feature_gradient"].flatten(1, 2)),
        "g3": _gram(fields["readout"]),
    }
    others = ("phi2", "g2", "router_gradient", "router_mean", "router_variance")
    found = {"f": f, "loss": loss, **kernels, **{name: fields[name] for name in others}}
    arrays = {name: each.double().cpu().numpy() for name, each in found.items()}
    return [{name: each[index] for name, each in arrays.items()} for index in range(replicas)]


def _state(experiment: Experiment, lockstep: Lockstep, x: Tensor) -> dict[str, Tensor]:
    """Activations and gradients of all networks now, scaled to order one as the equations have them."""
    program = lockstep.program
    assert isinstance(program, MLPProgram)
    config, width = program.config, program.config.width
    leaves = {name: each.detach() for name, each in lockstep.parameters.items()}
    leaves["embedding"].requires_grad_()  # so that autograd keeps what comes back to every layer
    factors = mlp.Multipliers(lockstep.constants["aggregation"], 1.0)
    acts = mlp.forward(leaves, x, config, factors)
    names = ("embedding", "blocks.0.router", "blocks.0.expert_in")
    # Outputs of different inputs do not depend on each other: one sum differentiates them all.
    back = torch.autograd.grad(acts["readout"].sum(), [acts[name] for name in names])
    leaves["embedding"].requires_grad_(False)
    acts = {name: each.detach() for name, each in acts.items()}
    psi, units = acts["blocks.0.router"], activation(config.activation)(acts["blocks.0.expert_in"])
    gate = acts["blocks.0.gates"] * (config.experts if config.gate == "softmax" else 1)
    wide_experts = 1 if experiment.plan.regime == "II" else width
    return {
        "f": acts["readout"][..., 0],
        "features": acts["features"],
        "aggregate": acts["blocks.0.aggregate"],
        "feature_gradient": back[0] * width,
        "readout": leaves["readout"][:, 0].clone() * width,
        "phi2": _gram((gate.unsqueeze(-1) * units).flatten(2)),
        "g2": _gram(back[2].flatten(2) * config.experts * wide_experts),
        "router_gradient": _gram(back[1] * config.experts),
        "router_mean": psi.mean(-1),
        "router_variance": psi.var(-1),  # as an estimate of that over all experts there could be
    }


def _gram(vectors: Tensor) -> Tensor:
    """Overlaps of vectors [R, rows, size] per entry, [R, rows, rows]."""
    return vectors @ vectors.mT / vectors.shape[-1]
