"""SGD, Adam and AdamW for R replicas at once, each with its own learning rate, eps and weight decay per parameter.

A replica is one of R models that train side by side, as tensors with a leading axis R. Operations run in the same order
as in ``torch.optim``, so a single replica gets bit-identical results.
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
        # A tensor, because a CUDA graph reads a tensor anew at each replay; a Python number would be frozen at capture.
        self._steps = torch.zeros((), dtype=torch.float64, device=next(iter(parameters.values())).device)
        # Parameters whose weights decay, or whose gradients are scaled, in any replica.
        self._decaying = {name for name, parameter_rates in rates.items() if parameter_rates.weight_decay.any()}
        self._scaled = {name for name, parameter_rates in rates.items() if (parameter_rates.grad_scale != 1).any()}
        if kind not in _UPDATES:
            titles = ", ".join(optimizer.title for optimizer in _UPDATES)
            raise ValueError(f"replicas have no update of {kind.title}, only of {titles}: add it to _UPDATES")
        self.moments = {
            name: [torch.zeros_like(parameter) for _ in range(kind.moments)] for name, parameter in parameters.items()
        }

    def step(self, gradients: Mapping[str, Gradient], alive: Tensor) -> None:
        """Updates the replicas that are ``alive``, [R], once; the others stay as they are."""
        self._steps += 1
        # Reading `alive` back from a GPU would force a synchronization, so on a GPU every gradient is masked.
        mask_dead = alive.device.type != "cpu" or not bool(alive.all())
        for name, parameter in self.parameters.items():
            gradient, rates = gradients[name], self.rates[name]
            if name in self._scaled:
                gradient = _scaled_by(rates.grad_scale, gradient)
            decay_factor = 1 - rates.lr * rates.weight_decay if name in self._decaying else None
            if isinstance(gradient, Factored) and self._fuses(parameter):
                self._fused_step(name, gradient, decay_factor, alive)
                continue
            if isinstance(gradient, Factored):
                gradient = gradient.product().view(parameter.shape)
            lr = rates.lr
            if mask_dead:
                gradient = torch.where(_broadcast_to(alive, gradient), gradient, 0.0)
                lr = torch.where(alive, lr, 0.0)
                decay_factor = None if decay_factor is None else torch.where(alive, decay_factor, 1.0)
            if decay_factor is not None:
                parameter.mul_(_broadcast_to(decay_factor, parameter))
            _UPDATES[self.kind](self, name, gradient, lr)

    def sgd(self, name: str, gradient: Tensor, lr: Tensor) -> None:
        parameter = self.parameters[name]
        parameter.addcmul_(gradient, _broadcast_to(lr, parameter), value=-1)

    def adam(self, name: str, gradient: Tensor, lr: Tensor) -> None:
        parameter, (mean, square) = self.parameters[name], self.moments[name]
        correction_1, root_correction_2 = self._bias_corrections()
        # On a CPU torch.optim divides by a Python number; reading one back from a GPU would force a synchronization.
        divisor = root_correction_2 if parameter.is_cuda else root_correction_2.item()
        mean.lerp_(gradient, 1 - self.betas[0])
        square.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
        denominator = (square.sqrt() / divisor).add_(_broadcast_to(self.rates[name].eps, parameter))
        parameter.addcdiv_(mean * _broadcast_to(-lr / correction_1, parameter), denominator)

    def _bias_corrections(self) -> tuple[Tensor, Tensor]:
        """Adam's bias corrections after the present number of steps: 1 - β₁ᵗ, and the square root of 1 - β₂ᵗ."""
        correction_1, correction_2 = (1 - beta**self._steps for beta in self.betas)
        return correction_1, correction_2.sqrt()

    def _fuses(self, parameter: Tensor) -> bool:
        """Whether one kernel can compute this parameter's gradient and its update together."""
        return self.kind in _FUSED and runs_triton(parameter.device.type, parameter.dtype)

    def _fused_step(self, name: str, gradient: Factored, decay_factor: Tensor | None, alive: Tensor) -> None:
        from mssp.replicas import kernels  # needs Triton

        rates = self.rates[name]
        correction_1, root_correction_2 = self._bias_corrections()
        mean, square = self.moments[name] or (None, None)  # SGD has no moments
        kernels.update(
            self.parameters[name],
            mean,
            square,
            gradient.rows,
            gradient.columns,
            step_size=(rates.lr if self.kind is SGD else rates.lr / correction_1).float(),
            eps=rates.eps.float(),
            decay_factor=None if decay_factor is None else decay_factor.float(),
            alive=alive,
            betas=self.betas,
            root_correction_2=root_correction_2.float(),
            tf32=self.tf32,
        )


# The update of each optimizer: a method that changes one parameter by its gradient, after weight decay.
_UPDATES: dict[Optimizer, Callable[[ReplicaOptimizer, str, Tensor, Tensor], None]] = {
    SGD: ReplicaOptimizer.sgd,
    ADAM: ReplicaOptimizer.adam,
    ADAMW: ReplicaOptimizer.adam,
}
_FUSED = frozenset({SGD, ADAM, ADAMW})  # the optimizers whose updates `kernels.update` computes


def _scaled_by(factors: Tensor, gradient: Gradient) -> Gradient:
    """Each replica's gradient times its factor, [R]."""
    if isinstance(gradient, Factored):
        return Factored(gradient.rows * _broadcast_to(factors, gradient.rows), gradient.columns)
    return gradient * _broadcast_to(factors, gradient)


def _broadcast_to(values: Tensor, tensor: Tensor) -> Tensor:
    """Reshapes [R] to [R, 1, ...] and casts to the tensor's dtype; booleans stay booleans."""
    shaped = values.view(-1, *(1,) * (tensor.dim() - 1))
    return shaped if shaped.dtype == torch.bool else shaped.to(tensor.dtype)
