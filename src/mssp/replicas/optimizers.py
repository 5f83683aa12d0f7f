"""SGD, Adam and AdamW for R replicas at once, each with its own learning rate, eps and weight decay per parameter.

The arithmetic is that of ``torch.optim``, in its order of operations: one replica alone gets the same bits.

Shapes: R replicas, B batch, O outputs and I inputs of a layer, G groups of replicas that see the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mssp.measure.magnitudes import rms, rms_of_products
from mssp.nn.experts.backend import runs_triton
from mssp.planning.setting import ADAM, ADAMW, SGD, Optimizer
from mssp.replicas.program import Factored, Gradient, Rates, per_replica


@torch.no_grad()
def size_of(gradient: Gradient) -> Tensor:
    """The RMS of each replica's gradient, [R]."""
    if isinstance(gradient, Factored):
        return rms_of_products(gradient.rows, per_replica(gradient.columns, len(gradient.rows)))
    return rms(gradient)


class ReplicaOptimizer:
    """The state of one optimizer for R replicas; ``step`` updates the parameters in place."""

    def __init__(
        self,
        kind: Optimizer,
        parameters: Mapping[str, Tensor],
        rates: Mapping[str, Rates],
        betas: tuple[float, float],
        tf32: bool = False,
    ) -> None:
        self.kind, self.parameters, self.rates, self.betas, self.tf32 = kind, parameters, rates, betas, tf32
        # The count is a tensor, which a recorded step reads each time it is replayed; a number would stay as recorded.
        self._steps = torch.zeros((), dtype=torch.float64, device=next(iter(parameters.values())).device)
        # Parameters whose weights decay, or whose gradients are scaled, in any replica.
        self._decays = {name for name, of_replicas in rates.items() if (of_replicas.weight_decay != 0).any()}
        self._scales = {name for name, of_replicas in rates.items() if (of_replicas.grad_scale != 1).any()}
        if kind not in _UPDATES:
            titles = ", ".join(optimizer.title for optimizer in _UPDATES)
            raise ValueError(f"replicas have no update of {kind.title}, only of {titles}: add it to _UPDATES")
        self.moments = {
            name: [torch.zeros_like(parameter) for _ in range(kind.moments)] for name, parameter in parameters.items()
        }

    def step(self, gradients: Mapping[str, Gradient], alive: Tensor) -> None:
        """One update of the replicas that are ``alive`` [R]; the others stay as they are."""
        self._steps += 1
        # Asking a GPU would wait for it; there every gradient is masked instead.
        some_are_dead = alive.device.type != "cpu" or not bool(alive.all())
        for name, parameter in self.parameters.items():
            gradient, rates = gradients[name], self.rates[name]
            if name in self._scales:
                gradient = _scaled(gradient, rates.grad_scale)
            shrink = 1 - rates.lr * rates.weight_decay if name in self._decays else None
            if isinstance(gradient, Factored) and self._fuses(parameter):
                self._fused_step(name, gradient, shrink, alive)
                continue
            if isinstance(gradient, Factored):
                gradient = gradient.product().view(parameter.shape)
            lr = rates.lr
            if some_are_dead:
                gradient = torch.where(_like(alive, gradient), gradient, 0.0)
                lr = torch.where(alive, lr, 0.0)
                shrink = None if shrink is None else torch.where(alive, shrink, 1.0)
            if shrink is not None:
                parameter.mul_(_like(shrink, parameter))
            _UPDATES[self.kind](self, name, gradient, lr)

    def sgd(self, name: str, gradient: Tensor, lr: Tensor) -> None:
        parameter = self.parameters[name]
        parameter.addcmul_(gradient, _like(lr, parameter), value=-1)

    def adam(self, name: str, gradient: Tensor, lr: Tensor) -> None:
        parameter, (mean, square) = self.parameters[name], self.moments[name]
        first, second = self._bias_corrections()
        # On a CPU it is a number, as in torch.optim; asking a GPU for the number would wait.
        root = second if parameter.is_cuda else second.item()
        mean.lerp_(gradient, 1 - self.betas[0])
        square.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
        denominator = (square.sqrt() / root).add_(_like(self.rates[name].eps, parameter))
        parameter.addcdiv_(mean * _like(-lr / first, parameter), denominator)

    def _bias_corrections(self) -> tuple[Tensor, Tensor]:
        first, second = (1 - beta**self._steps for beta in self.betas)
        return first, second.sqrt()

    def _fuses(self, parameter: Tensor) -> bool:
        return self.kind in _FUSED and runs_triton(parameter.device.type, parameter.dtype)

    def _fused_step(self, name: str, gradient: Factored, shrink: Tensor | None, alive: Tensor) -> None:
        from mssp.replicas import kernels

        rates = self.rates[name]
        first, second = self._bias_corrections()
        mean, square = self.moments[name] or (None, None)
        kernels.update(
            self.parameters[name],
            mean,
            square,
            gradient.rows,
            gradient.columns,
            step_size=(rates.lr if self.kind is SGD else rates.lr / first).float(),
            eps=rates.eps.float(),
            shrink=None if shrink is None else shrink.float(),
            alive=alive,
            betas=self.betas,
            root_correction=second.float(),
            tf32=self.tf32,
        )


# How each optimizer moves a parameter by its gradient, after weight decay.
_UPDATES: dict[Optimizer, Callable[[ReplicaOptimizer, str, Tensor, Tensor], None]] = {
    SGD: ReplicaOptimizer.sgd,
    ADAM: ReplicaOptimizer.adam,
    ADAMW: ReplicaOptimizer.adam,
}
_FUSED = frozenset({SGD, ADAM, ADAMW})  # those that the kernels compute


def _scaled(gradient: Gradient, factor: Tensor) -> Gradient:
    if isinstance(gradient, Factored):
        return Factored(gradient.rows * _like(factor, gradient.rows), gradient.columns)
    return gradient * _like(factor, gradient)


def _like(per_replica: Tensor, tensor: Tensor) -> Tensor:
    """[R] as [R, 1, ...], in the tensor's precision."""
    shaped = per_replica.view(-1, *(1,) * (tensor.dim() - 1))
    return shaped if shaped.dtype == torch.bool else shaped.to(tensor.dtype)
