"""The check on any torch module: it is built at several shapes, trained for a few steps, and measured through hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mssp._constraints import (
    a_device,
    a_plan,
    claims,
    collection,
    function,
    kind_of,
    optional,
    positive_int,
    several,
    takes,
)
from mssp.apply.description import Claims, described_parameters
from mssp.apply.groups import optimizer_for
from mssp.apply.initial_weights import initialize as initialize_by_plan
from mssp.coordcheck.result import Check
from mssp.coordcheck.series import Numbers, Series
from mssp.measure.forward import adapted, wrong_factors
from mssp.measure.magnitudes import Pool, rms
from mssp.measure.modules import Described, Entries, ModuleProbe, own_loss
from mssp.measure.moe_layers import moe_layers
from mssp.measure.quantities import AGGREGATION, EPS, GATE_DERIVATIVE, GRADIENT, GRADIENT_SUM, LOSS
from mssp.planning.growth import infer
from mssp.planning.parameter import OWN
from mssp.planning.plans import Plan
from mssp.planning.setting import ANY
from mssp.planning.shape import Shape
from mssp.theory.expected import Theory

Loss = Callable[[nn.Module, Any], Tensor]
_FEWEST_SIZES = 2
_SIZES = ("width", "expert_width", "experts", "active")  # over the first of them that differs, exponents are fitted


@takes(
    build=function,
    shapes=several(kind_of(Shape)),
    batches=collection,
    plan=a_plan,
    seeds=positive_int,
    loss=optional(function),
    claims=optional(claims),
    initialize=optional(function),
    optimizer=optional(function),
    device=a_device,
)
def check(
    build: Callable[[Shape], nn.Module],
    shapes: Sequence[Shape],
    batches: Sequence[Any],
    plan: Plan,
    *,
    seeds: int = 3,
    loss: Loss | None = None,
    claims: Claims | None = None,
    initialize: Callable[[nn.Module, Plan, int], None] | None = None,
    optimizer: Callable[[nn.Module, Plan], torch.optim.Optimizer] | None = None,
    device: str | torch.device = "cpu",
) -> Check:
    """Check whether a model behaves as the theory says it should as it grows, after each of a few updates.

    >>> from mssp import Shape, plan
    >>> from mssp.nn import GPT, GPTConfig
    >>> def build(shape: Shape) -> GPT:
    ...     sizes = {"depth": shape.depth, "vocabulary": 16, "context": 8, "head": 8}
    ...     return GPT(GPTConfig(shape.width, shape.expert_width, shape.experts, **sizes))
    >>> shapes = [Shape(n, 8, n // 8, n // 8, 1) for n in (16, 32)]
    >>> tokens = torch.arange(8).view(1, 8)
    >>> report = check(build, shapes, [(tokens, tokens)] * 2, plan(shapes[0], regime="II", lr=0.01), seeds=2)
    >>> report.quantities["weights/expert_out"].verdict
    'ok'

    Args:
        build: makes a model of the given shape; its initial values do not matter.
        shapes: at least two, which grow as the plan's regime says; four over a factor of eight make clear exponents.
        batches: arguments of ``loss``, one for each update; sizes are measured on the first.
        plan: a plan for one of the shapes, or for their base; it is extended to every shape.
        seeds: the number of models of each shape; they differ by their initial weights.
        loss: takes model and batch, returns the mean loss. By default a batch is (inputs, targets), and the loss is the
            cross-entropy of the model's outputs (or their ``.logits``); for a mapping, the model returns the loss.
        claims: what the parameters are, where the modules do not say so themselves (see :func:`mssp.describe`).
        initialize: takes model, plan and seed; :func:`mssp.initialize` by default.
        optimizer: takes model and plan; the plan's groups and optimizer by default.
        device: the device of the models; batches must be on it already.
    """
    batches = list(batches)
    sizes = _sizes(shapes, plan)
    if not batches:
        raise ValueError("no batches to train on: one update is taken for each")
    plans = {size: plan.extend(shape) for size, shape in sizes.items()}
    make_optimizer = optimizer or (lambda model, plan: optimizer_for(model, plan, claims))
    measured: dict[int, Mapping[str, Numbers]] = {}
    ratios: dict[int, dict[str, set[tuple[float, float]]]] = {}
    for size, shape in sizes.items():
        runs = []
        for seed in range(seeds):
            model = build(shape)
            if not isinstance(model, nn.Module):
                raise ValueError(f"build(shape) makes a torch module, got {type(model).__name__}")
            model = model.to(device)
            if initialize is None:
                initialize_by_plan(model, plans[size], claims, seed=seed)
            else:
                initialize(model, plans[size], seed)
            runs.append(_measured(model, make_optimizer(model, plans[size]), batches, loss or cross_entropy, claims))
        measured[size] = {name: np.stack([run[name] for run in runs], axis=-1) for name in runs[0]}
        ratios[size] = _ratios_to_role(plans[size], model, claims)
    smallest = min(sizes)
    own_sides = {
        role for role in ratios[smallest] if any(ratios[smallest][role] != ratios[size][role] for size in sizes)
    }
    # A seed draws the initial weights alone, and those of two sizes have nothing to do with each other.
    series = Series.of(measured, plan.setting.optimizer, paired=False)
    # A readout that starts at zero passes no gradient back. If the embedding has one, it comes another way.
    gradient = series.values.get(GRADIENT("embedding"))
    bypassed = plans[smallest].roles["readout"].zero and gradient is not None and bool(gradient[:, 0].any())
    equal_shares = any(layer.sums_to_one for layer in moe_layers(model))
    infos = [info for info, _ in described_parameters(model, claims)]
    theory = Theory(
        plans,
        own_sides=own_sides,
        own_starts={info.role for info in infos if info.start == OWN},
        bypassed=bypassed,
        equal_shares=equal_shares,
        derivatives=series.values.get(GATE_DERIVATIVE()),
        tied_readout=any(info.tied_readout for info in infos),
    )

    def of_forward_pass() -> list[str]:
        ends = max(sizes), smallest
        if adapted(model):  # its factors are hooks, which its own verification measures
            return []
        measured_loss = loss or cross_entropy

        def run(model: nn.Module) -> Tensor:
            return measured_loss(model, batches[0])

        models = tuple(build(sizes[size]).to(device) for size in ends)
        where = f"at {'depth' if theory.depth else 'width'} {smallest}"
        with contextlib.suppress(ValueError):  # a model that a probe cannot measure
            return wrong_factors((models[0], models[1]), (plans[ends[0]], plans[ends[1]]), claims, run, where)
        return []

    return Check.of(series, theory, of_forward_pass)


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """The mean loss over the tokens of a batch (inputs, targets); for a mapping, the loss that the model returns."""
    if isinstance(batch, Mapping):
        loss = own_loss(model, batch)
        if loss is None:
            raise ValueError("the model returns no loss for a batch that is a mapping: put labels in it, or pass loss")
        return loss
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError(f"a batch is (inputs, targets), got {type(batch).__name__}: for others, pass loss")
    inputs, targets = batch
    outputs = model(inputs)
    outputs = outputs if isinstance(outputs, Tensor) else outputs.logits
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _measured(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[Any], loss: Loss, claims: Claims | None
) -> dict[str, Numbers]:
    """The measured quantities of one model in training by name, [steps + 1]."""
    described = described_parameters(model, claims)
    probe = ModuleProbe(model, batches[0], loss, claims)
    constants = _constants(model, optimizer, described)
    gradient_sums = {info.name: torch.zeros((), dtype=torch.float64) for info, _ in described}
    rows, losses = [probe() | _by_role(gradient_sums, described)], []
    for batch in batches:
        optimizer.zero_grad()
        batch_loss = loss(model, batch)
        batch_loss.backward()
        for info, parameter in described:
            if parameter.grad is not None:
                gradient_size = rms(parameter.grad.detach().unsqueeze(0))[0].cpu()
                gradient_sums[info.name] = gradient_sums[info.name] + gradient_size
        optimizer.step()
        losses.append(batch_loss.item())
        rows.append(probe() | _by_role(gradient_sums, described))
    names = [name for name in rows[-1] if all(name in row for row in rows)]
    measured = {name: np.array([float(row[name]) for row in rows]) for name in names}
    measured[LOSS()] = np.array([*losses, np.nan])
    return measured | {name: np.full(len(rows), value) for name, value in constants.items()}


def _by_role(gradient_sums: Mapping[str, Tensor], described: Described) -> dict[str, Tensor]:
    """The sizes of the summed gradients of parameters, one for each role."""
    entries = Entries()
    for info, parameter in described:
        entries.add_size(GRADIENT_SUM(info.role), gradient_sums[info.name], parameter.numel())
    return entries.sizes()


def _ratios_to_role(plan: Plan, model: nn.Module, claims: Claims | None) -> dict[str, set[tuple[float, float]]]:
    """By role, the ratios of its parameters' initial scales and learning rates to the role's.

    They differ from 1 for parameters whose matrices have other sides than the role's.
    """
    infos = [info for info, _ in described_parameters(model, claims)]
    ratios: dict[str, set[tuple[float, float]]] = {}
    for info, values in zip(infos, plan.resolve(infos).values(), strict=True):
        role_values = plan.all_roles[info.role]
        init_ratio = values.init_std / role_values.init_std if role_values.init_std else 1.0
        ratios.setdefault(info.role, set()).add((round(init_ratio, 6), round(values.lr / role_values.lr, 6)))
    return ratios


def _constants(model: nn.Module, optimizer: torch.optim.Optimizer, described: Described) -> dict[str, float]:
    """Quantities that training does not change: eps of the optimizer by role, and the factor of MoE layers."""
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    pool = Pool()
    for info, parameter in described:
        group = groups.get(id(parameter), {})
        if group.get("eps") is not None and "betas" in group:
            # To Adam, gradients that are scaled up are the same as a smaller eps.
            pool.add(EPS(info.role), torch.tensor([group["eps"] / group.get("grad_scale", 1.0)]))
    for layer in moe_layers(model):
        if not layer.sums_to_one:  # such gates take no factor
            pool.add(AGGREGATION(), torch.tensor([layer.aggregation]))
    return {name: float(size) for name, size in pool.sizes().items()}


def _sizes(shapes: Sequence[Shape], plan: Plan) -> dict[int, Shape]:
    """The shapes by the size that grows: by width, or by depth if the width stays."""
    if len(shapes) < _FEWEST_SIZES:
        raise ValueError(f"an exponent needs at least two shapes, got {len(shapes)}")
    for shape in shapes:
        if not isinstance(shape, Shape):
            raise ValueError(f"shapes are of mssp.Shape, got {shape!r}")
    grows = next((name for name in _SIZES if len({getattr(shape, name) for shape in shapes}) > 1), "depth")
    by_size = dict(sorted({getattr(shape, grows): shape for shape in shapes}.items()))
    if len(by_size) < len(shapes):
        raise ValueError(f"exponents are over the {grows}: the {len(shapes)} shapes have {len(by_size)} of them")
    if grows != "depth" and plan.setting.regime not in (None, ANY):
        regime = infer(by_size[min(by_size)], by_size[max(by_size)])
        if regime is not plan.setting.regime:
            raise ValueError(f"the plan is for Regime {plan.regime}, and the shapes grow as Regime {regime} does")
    return by_size
