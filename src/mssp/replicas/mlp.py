"""R replicas of the paper's MLP MoE as one program; inputs of any shape are flattened.

On a CPU, autograd computes the gradient of every parameter. On a GPU with Triton it stops at the layers' outputs: the
gradient of a layer's weights is the product of the layer's input and the gradient at its output, and the optimizer's
kernel computes this product itself (:class:`mssp.replicas.program.Factored`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mssp._constraints import kind_of, takes
from mssp.apply.description import described_parameters
from mssp.apply.random_numbers import normals
from mssp.apply.verification import check_routing
from mssp.measure.mlp import MLPProbe
from mssp.measure.quantities import AGGREGATION
from mssp.nn import mlp
from mssp.nn.experts import backend
from mssp.nn.experts.paths import gated_hidden_units
from mssp.planning.parameter import ParamInfo
from mssp.planning.plans import Plan, Values
from mssp.replicas.metrics import OF_CLASSES, scores_of_classes
from mssp.replicas.program import (
    Batch,
    Constants,
    Factored,
    Gradient,
    Probe,
    Replica,
    Step,
    initial_weights,
    per_replica,
    stacked,
)

_MOST_NUMBERS = 2**50  # of a model: PyTorch counts no more bytes than 64 bits do
_MOST_BLOCKS = 10_000  # each is described by itself, which takes a second for every thousand of them


def _check_size(config: mlp.MLPConfig) -> None:
    """Refuse a model that is too large to be described, before its parameters are."""
    N, E, M = config.width, config.expert_width, config.experts
    numbers = (config.inputs + config.outputs) * N + config.blocks * M * N * (1 + 2 * E)
    if numbers > _MOST_NUMBERS:
        raise ValueError(f"a model of {config.shape} needs {numbers / 2**28:.0e} GiB: no device has that much")
    if config.blocks > _MOST_BLOCKS:
        raise ValueError(f"a model of {config.shape} has {config.blocks:,} blocks: use {_MOST_BLOCKS:,} at most")


@takes(config=kind_of(mlp.MLPConfig))
class MLPProgram:
    """The MLP MoE of one configuration, for any number of replicas."""

    metrics: tuple[str, ...] = OF_CLASSES

    def __init__(self, config: mlp.MLPConfig) -> None:
        self.config = config
        _check_size(config)
        with torch.device("meta"):  # only the description of its parameters is needed
            self._model = mlp.MLPMoE(config)
        described = described_parameters(self._model)
        self.infos: Sequence[ParamInfo] = [info for info, _ in described]
        self.shapes: Mapping[str, tuple[int, ...]] = {info.name: tuple(weight.shape) for info, weight in described}

    def check(self, plan: Plan) -> None:
        self._model.plan_multipliers(plan)
        check_routing(plan, self._model, self.infos)

    def setup(
        self, replicas: Sequence[Replica], values: Mapping[str, Sequence[Values]], device: torch.device
    ) -> tuple[dict[str, Tensor], Constants]:
        plans = {id(replica.plan): replica.plan for replica in replicas}
        factors = {key: self._model.plan_multipliers(plan) for key, plan in plans.items()}
        for plan in {plan.setting: plan for plan in plans.values()}.values():
            self.check(plan)  # one plan of each setting is enough: the others differ in tuned values only
        parameters = {
            info.name: initial_weights(replicas, info, self.shapes[info.name], values[info.name], device)
            for info in self.infos
        }
        return parameters, stacked([factors[id(replica.plan)] for replica in replicas], device)

    def outputs(self, parameters: Mapping[str, Tensor], constants: Constants, x: Tensor) -> Tensor:
        return self._forward(parameters, constants, x.flatten(2), None)["readout"]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mlp.loss(outputs, targets, self.config.loss)

    def scores(self, losses: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
        return scores_of_classes(losses, outputs, targets)

    def gradients(self, parameters: Mapping[str, Tensor], constants: Constants, batch: Batch) -> Step:
        leaves = {name: parameter.requires_grad_() for name, parameter in parameters.items()}
        x = batch.x.flatten(2)
        acts = self._forward(leaves, constants, x, self._noise(batch, len(leaves["readout"])))
        losses = self.losses(acts["readout"], batch.targets)
        gradients: Mapping[str, Gradient]
        if backend.fused(x):
            gradients = self._factored(acts, losses, constants, x)
        else:
            gradients = dict(zip(leaves, torch.autograd.grad(losses.sum(), list(leaves.values())), strict=True))
        for parameter in parameters.values():
            parameter.requires_grad_(False)
        return Step(losses.detach(), acts["readout"].detach(), gradients)

    def probe(self, parameters: Mapping[str, Tensor], constants: Constants, x: Tensor, targets: Tensor) -> Probe:
        return MLPProbe(self.config, _multipliers(constants), parameters, x.flatten(2), targets)

    def factors(self, constants: Constants) -> Mapping[str, Tensor]:
        return {AGGREGATION(): constants["aggregation"].flatten().double()}

    @property
    def recordable(self) -> bool:
        return self.config.soft or not self.config.noise  # noise is drawn on the CPU, in every step

    def floats_per_example(self) -> int:
        config = self.config
        block = 10 * config.experts * config.expert_width + 6 * config.experts + 4 * config.width
        return 4 * config.width + config.blocks * block + 8 * config.outputs

    def _forward(
        self, parameters: Mapping[str, Tensor], constants: Constants, x: Tensor, noise: Sequence[Tensor] | None
    ) -> mlp.Activations:
        factors = _multipliers(constants)
        shared = x[0] if len(x) == 1 else x
        if len(parameters["readout"]) == 1 and not backend.fused(x):
            # A single replica is computed without the axis R, and so bit-identically to a model outside of replicas:
            # batched products round differently.
            factors = _multipliers({name: factor.view(()) for name, factor in constants.items()})
            single = {name: parameter[0] for name, parameter in parameters.items()}
            noise = None if noise is None else [block_noise[0] for block_noise in noise]
            acts = mlp.forward(single, shared, self.config, factors, noise)
            return {name: act.unsqueeze(0) for name, act in acts.items()}
        return mlp.forward(parameters, shared, self.config, factors, noise)

    def _noise(self, batch: Batch, replicas: int) -> Sequence[Tensor] | None:
        """Noise for the choice of experts, [R, B, M] for each block. It depends on seed and step alone."""
        config = self.config
        if not config.noise or config.soft:
            return None
        shape = (len(batch.seeds), batch.x.shape[1], config.experts)
        noises = []
        for block in range(config.blocks):
            name = f"blocks.{block}.noise.{batch.step}"
            drawn = [torch.from_numpy(normals(seed, name, 0, shape[1] * shape[2])) for seed in batch.seeds]
            noise = torch.stack(drawn).view(shape).to(batch.x.device) * config.noise
            noises.append(per_replica(noise, replicas))
        return noises

    def _factored(self, acts: mlp.Activations, losses: Tensor, constants: Constants, x: Tensor) -> dict[str, Gradient]:
        """Gradients of parameters as factors: the gradient at a layer's output, and the layer's input."""
        layers = ("router", "expert_in", "aggregate")
        block_names = [f"blocks.{block}.{layer}" for block in range(self.config.blocks) for layer in layers]
        names = ["embedding", *block_names, "readout"]
        grads = dict(zip(names, torch.autograd.grad(losses.sum(), [acts[name] for name in names]), strict=True))
        acts = {name: act.detach() for name, act in acts.items()}
        gradients: dict[str, Gradient] = {"embedding": Factored(grads["embedding"], x)}
        h = acts["features"]
        for block in range(self.config.blocks):
            name = f"blocks.{block}."
            gates = acts[f"{name}gates"] * constants["aggregation"]
            hidden = gated_hidden_units(acts[f"{name}expert_in"], gates, self.config.activation, gated=False)
            gradients |= {
                f"{name}router": Factored(grads[f"{name}router"], h),
                f"{name}w_in": Factored(grads[f"{name}expert_in"].flatten(-2), h),
                f"{name}w_out": Factored(hidden.flatten(-2), grads[f"{name}aggregate"]),
            }
            h = acts[f"{name}output"]
        gradients["readout"] = Factored(grads["readout"], h)
        return gradients


def _multipliers(constants: Constants) -> mlp.Multipliers:
    """The multipliers of a forward pass; only models with residual blocks have one for the residual."""
    return mlp.Multipliers(constants["aggregation"], constants.get("residual", 1.0))
