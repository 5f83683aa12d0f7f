"""R copies of any ``nn.Module`` as one program, through ``torch.func``: slower than a program of its own, and general.

The module must be a function of its parameters, buffers and input: no state that its forward pass changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from mssp.apply.description import Claims, described_parameters, multipliers_of
from mssp.apply.initial_weights import initialize
from mssp.apply.verification import check_routing
from mssp.planning.parameter import ParamInfo
from mssp.planning.plans import Plan, Values
from mssp.replicas.metrics import OF_CLASSES, scores_of_classes
from mssp.replicas.program import Batch, Constants, Probe, Replica, Step, per_replica


def mean_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


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
        # A copy: replicas are initialized in it, which is no business of the model that was given.
        self._model, self._claims, self._loss = deepcopy(model), claims, loss
        self._multipliers: dict[str, float] = {}
        described = described_parameters(self._model, claims)
        self.infos: Sequence[ParamInfo] = [info for info, _ in described]
        self.shapes: Mapping[str, tuple[int, ...]] = {info.name: tuple(each.shape) for info, each in described}
        named = {id(parameter): name for name, parameter in self._model.named_parameters()}
        self._path = {info.name: named[id(parameter)] for info, parameter in described}

    def check(self, plan: Plan) -> None:
        multipliers_of(self._model, plan)
        check_routing(plan, self._model, self.infos)

    def setup(
        self, replicas: Sequence[Replica], values: Mapping[str, Sequence[Values]], device: torch.device
    ) -> tuple[dict[str, Tensor], Constants]:
        """The module itself is initialized as each replica in turn, and copied."""
        self._check_one_forward_pass(replicas)
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
        constants = {name: torch.stack(each) for name, each in buffers.items()}
        return {name: torch.stack(each) for name, each in parameters.items()}, constants

    def outputs(self, parameters: Mapping[str, Tensor], constants: Constants, x: Tensor) -> Tensor:
        def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Tensor:
            return self._outputs(weights, buffers, inputs)

        return self._over_replicas(one, parameters, constants, x)  # type: ignore[no-any-return]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([self._loss(*each) for each in zip(outputs, targets, strict=True)])

    def scores(self, losses: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
        return scores_of_classes(losses, outputs, targets)

    def gradients(self, parameters: Mapping[str, Tensor], constants: Constants, batch: Batch) -> Step:
        def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Any:
            outputs = self._outputs(weights, buffers, inputs)
            return self._loss(outputs, target), outputs

        differentiated = grad_and_value(one, has_aux=True)
        found = self._over_replicas(differentiated, parameters, constants, batch.x, batch.targets)
        gradients, (losses, outputs) = found
        return Step(losses, outputs, gradients)

    def probe(self, parameters: Mapping[str, Tensor], constants: Constants, x: Tensor, targets: Tensor) -> Probe:
        name = type(self._model).__name__
        raise ValueError(f"replicas of {name} are not measured term by term: mssp.check(build, ...) measures modules")

    def told(self, constants: Constants) -> Mapping[str, Tensor]:
        """Nothing: a module keeps its multipliers to itself."""
        return {}

    @property
    def recordable(self) -> bool:
        return False  # a module may do anything in its forward pass

    def floats_per_example(self) -> int:
        """Unknown for a module that is not ours: as much as a hundred activations of the widest layer's sides."""
        return 100 * max(max(shape[-2:], default=1) for shape in self.shapes.values())

    def _outputs(self, weights: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Tensor:
        state = {**buffers, **{self._path[name]: weight for name, weight in weights.items()}}
        found = functional_call(self._model, state, (inputs,))
        return found if isinstance(found, Tensor) else found.logits

    def _over_replicas(
        self, function: Callable[..., Any], parameters: Mapping[str, Tensor], constants: Constants, *data: Tensor
    ) -> Any:
        replicas = len(next(iter(parameters.values())))
        # One batch for all is not copied for each.
        axes = tuple(None if len(each) == 1 else 0 for each in data)
        batches = [each[0] if len(each) == 1 else per_replica(each, replicas) for each in data]
        mapped = vmap(function, in_dims=(0, 0, *axes), randomness="different")
        return mapped(dict(parameters), dict(constants), *batches)

    def _check_one_forward_pass(self, replicas: Sequence[Replica]) -> None:
        """A module holds one set of multipliers, as plain numbers, which all its replicas share."""
        for replica in replicas:
            wanted = multipliers_of(self._model, replica.plan)
            self._multipliers = self._multipliers or wanted
            for name, factor in wanted.items():
                if factor != self._multipliers[name]:
                    raise ValueError(
                        f"replicas of a module share its multipliers: {name} is {self._multipliers[name]} in one plan "
                        f"and {factor} in another; make a program for each, or use an MLP MoE"
                    )
