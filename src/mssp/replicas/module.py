"""R replicas of any ``nn.Module`` as one program, through ``torch.func``: general, but slower than a program by hand.

The module must be a function of its parameters, buffers and input: its forward pass may not change any state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from mssp._constraints import a_module, claims, function, optional, takes
from mssp.apply.description import Claims, described_parameters, multipliers_of
from mssp.apply.initial_weights import initialize
from mssp.apply.verification import check_routing
from mssp.planning.parameter import ParamInfo
from mssp.planning.plans import Plan, Values
from mssp.replicas.metrics import OF_CLASSES, scores_of_classes
from mssp.replicas.program import Batch, Constants, Probe, Replica, Step, per_replica


def mean_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


@takes(model=a_module, claims=optional(claims), loss=function)
class ModuleProgram:
    """A module that maps a batch of inputs to outputs [batch, ..., classes], or to something with ``.logits``.

    >>> from mssp.nn import GPT, GPTConfig
    >>> program = ModuleProgram(GPT(GPTConfig(width=8, expert_width=4, experts=2, depth=1, head=4, vocabulary=11)))
    >>> program.infos[0].role
    'embedding'

    Args:
        claims: what the parameters are, where the modules do not say so themselves.
        loss: from one replica's outputs and targets to its mean loss.
    """

    metrics: tuple[str, ...] = OF_CLASSES

    def __init__(
        self,
        model: nn.Module,
        claims: Claims | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] = mean_cross_entropy,
    ) -> None:
        # A copy, because `setup` initializes the module once for each replica.
        self._model, self._claims, self._loss = deepcopy(model), claims, loss
        self._multipliers: dict[str, float] = {}
        described = described_parameters(self._model, claims)
        self.infos: Sequence[ParamInfo] = [info for info, _ in described]
        self.shapes: Mapping[str, tuple[int, ...]] = {info.name: tuple(weight.shape) for info, weight in described}
        paths = {id(parameter): path for path, parameter in self._model.named_parameters()}
        self._path = {info.name: paths[id(parameter)] for info, parameter in described}

    def check(self, plan: Plan) -> None:
        multipliers_of(self._model, plan)
        check_routing(plan, self._model, self.infos)

    def setup(
        self, replicas: Sequence[Replica], values: Mapping[str, Sequence[Values]], device: torch.device
    ) -> tuple[dict[str, Tensor], Constants]:
        """Initializes the module as each replica in turn, and stacks copies of its parameters and buffers."""
        self._check_multipliers(replicas)
        parameters: dict[str, list[Tensor]] = {name: [] for name in self.shapes}
        buffers: dict[str, list[Tensor]] = {name: [] for name, _ in self._model.named_buffers()}
        for replica in replicas:
            initialize(self._model, replica.plan, self._claims, seed=replica.seed)
            state = dict(self._model.named_parameters())
            for name, path in self._path.items():
                parameters[name].append(state[path].detach().to(device, copy=True))
            for name, buffer in self._model.named_buffers():
                buffers[name].append(buffer.detach().to(device, copy=True))
        self._model.to(device)
        constants = {name: torch.stack(copies) for name, copies in buffers.items()}
        return {name: torch.stack(copies) for name, copies in parameters.items()}, constants

    def outputs(self, parameters: Mapping[str, Tensor], constants: Constants, x: Tensor) -> Tensor:
        return self._over_replicas(self._outputs, parameters, constants, x)  # type: ignore[no-any-return]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([self._loss(*pair) for pair in zip(outputs, targets, strict=True)])

    def scores(self, losses: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
        return scores_of_classes(losses, outputs, targets)

    def gradients(self, parameters: Mapping[str, Tensor], constants: Constants, batch: Batch) -> Step:
        def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Any:
            outputs = self._outputs(weights, buffers, inputs)
            return self._loss(outputs, targets), outputs

        gradients, (losses, outputs) = self._over_replicas(
            grad_and_value(loss, has_aux=True), parameters, constants, batch.x, batch.targets
        )
        return Step(losses, outputs, gradients)

    def probe(self, parameters: Mapping[str, Tensor], constants: Constants, x: Tensor, targets: Tensor) -> Probe:
        name = type(self._model).__name__
        raise ValueError(f"replicas of {name} are not measured term by term: mssp.check(build, ...) measures modules")

    def factors(self, constants: Constants) -> Mapping[str, Tensor]:
        return {}  # multipliers are attributes somewhere in the module, under names that are not known here

    @property
    def recordable(self) -> bool:
        return False  # a module may do anything in its forward pass

    def floats_per_example(self) -> int:
        """A rough guess, because the module can be anything: a hundred times the widest side of a layer."""
        return 100 * max(max(shape[-2:], default=1) for shape in self.shapes.values())

    def _outputs(self, weights: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Tensor:
        state = {**buffers, **{self._path[name]: weight for name, weight in weights.items()}}
        output = functional_call(self._model, state, (inputs,))
        return output if isinstance(output, Tensor) else output.logits

    def _over_replicas(
        self, function: Callable[..., Any], parameters: Mapping[str, Tensor], constants: Constants, *data: Tensor
    ) -> Any:
        replicas = len(next(iter(parameters.values())))
        # vmap shares a batch with axis None between all replicas, without copies.
        axes = tuple(None if len(groups) == 1 else 0 for groups in data)
        batches = [groups[0] if len(groups) == 1 else per_replica(groups, replicas) for groups in data]
        mapped = vmap(function, in_dims=(0, 0, *axes), randomness="different")
        return mapped(dict(parameters), dict(constants), *batches)

    def _check_multipliers(self, replicas: Sequence[Replica]) -> None:
        """Refuses replicas with different multipliers: a module holds one set of them, as plain numbers."""
        for replica in replicas:
            multipliers = multipliers_of(self._model, replica.plan)
            self._multipliers = self._multipliers or multipliers
            for name, factor in multipliers.items():
                if factor != self._multipliers[name]:
                    raise ValueError(
                        f"replicas of a module share its multipliers: {name} is {self._multipliers[name]} in one plan "
                        f"and {factor} in another; make a program for each, or use an MLP MoE"
                    )
