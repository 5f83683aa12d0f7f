"""Writes initial values into parameters of any device, dtype and sharding.

Everything is checked before anything is written, so that a call that fails has changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mssp._constraints import a_module, a_plan, claims, one_of, optional, takes, whole
from mssp.apply.description import Claims, name_cleaner, planned_multipliers, planned_parameters
from mssp.apply.protocols import Draws, HasOwnValues, KeepsPlan
from mssp.apply.random_numbers import BLOCK, normals, threads
from mssp.apply.sharding import is_sharded
from mssp.apply.verification import GATE_KINDS, check_parts, check_precision, check_routing
from mssp.planning.parameter import OWN
from mssp.planning.rules import BIASES, GAINS

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from mssp.planning.parameter import ParamInfo
    from mssp.planning.plans import Plan, Values


@takes(
    model=a_module,
    plan=a_plan,
    claims=optional(claims),
    seed=whole,
    gate=optional(one_of(GATE_KINDS)),
)
def initialize(
    model: nn.Module,
    plan: Plan,
    claims: Claims | None = None,
    *,
    seed: int = 0,
    gate: str | None = None,
) -> None:
    """Give every trainable parameter its initial value, in place, and the models of ``mssp.nn`` their multipliers.

    The values depend on the seed and the parameter's name alone: not on order, device, wrapping or sharding. A model of
    transformers that was built on the meta device and given memory by ``to_empty`` gets its buffers too, and what is
    not trained.

    Args:
        claims: what the parameters are, where the modules do not say so themselves (see :func:`mssp.describe`).
        gate: ``sigmoid``, ``softmax`` or ``renormalised``, to be warned where experts start alike and the plan is
            for other gates. The routers of ``mssp.nn`` say it of themselves.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed must be a whole number, got {seed!r}")
    described = planned_parameters(model, plan, claims)
    check_routing(plan, model, [info for info, _, _ in described], gate)
    check_parts(plan, [info for info, _, _ in described])
    check_precision(plan, described)
    multipliers = list(planned_multipliers(model, plan))
    with_own_values = [module for module in model.modules() if isinstance(module, HasOwnValues)]
    own_values = [info.name for info, _, _ in described if info.start == OWN]
    for info, parameter, _ in described:
        if parameter.is_meta:
            kept = f" and what keeps the model's own values ({', '.join(own_values[:2])}, …)" if own_values else ""
            also = "" if with_own_values else f", and fill its buffers{kept}"
            remedy = f"call model.to_empty(device=...) first, tie again what is tied{also}"
            raise ValueError(f"{info.name} is on the meta device: {remedy}")
        if not parameter.is_floating_point():
            raise ValueError(f"{info.name} has dtype {parameter.dtype}: initial weights are floating-point numbers")
        if 0 in (parameter.stride(axis) for axis, size in enumerate(parameter.shape) if size > 1):
            raise ValueError(f"{info.name} is an expanded view, whose entries share memory: clone it first")
    missing = [pair for module in with_own_values for pair in module.missing_own_values(plan, seed)]
    with torch.no_grad():
        for tensor, value in missing:
            copy_whole(tensor, value)
        _fill_all(described, padding_rows(model), seed)
        clean = name_cleaner(model)
        for name, module in model.named_modules():
            if isinstance(module, Draws):
                module.draw_for_plan(seed, clean(name))
    for module, _, name, factor in multipliers:
        setattr(module, name, factor)
    for module in model.modules():
        if isinstance(module, KeepsPlan):
            module.keep_plan(plan)


Region = tuple[slice, ...]


def padding_rows(model: nn.Module) -> dict[int, int]:
    """The row of each embedding that stands for padding, by the id of the matrix. Torch starts it at 0, and keeps it.

    >>> embedding = nn.Embedding(8, 4, padding_idx=-1)
    >>> padding_rows(embedding) == {id(embedding.weight): 7}
    True
    """
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    return {id(each.weight): each.padding_idx for each in embeddings if each.padding_idx is not None}


def _fill_all(described: list[tuple[ParamInfo, Tensor, Values]], padding: dict[int, int], seed: int) -> None:
    """Fill small parameters side by side, each in a thread; a large one has all threads to itself."""

    def fill_one(item: tuple[ParamInfo, Tensor, Values]) -> None:
        info, parameter, values = item
        with torch.no_grad():  # which holds for one thread only
            fill(parameter, info, values, seed, padding.get(id(parameter)))

    small = [item for item in described if item[1].numel() <= BLOCK and not is_sharded(item[1])]
    with ThreadPoolExecutor(threads()) as pool:
        list(pool.map(fill_one, small))
    for item in described:
        if item[1].numel() > BLOCK or is_sharded(item[1]):
            fill_one(item)


def fill(parameter: Tensor, info: ParamInfo, values: Values, seed: int, zero_row: int | None = None) -> None:
    """Write one parameter's initial value in place. ``zero_row`` is the one that stands for padding."""
    if info.start == OWN:
        return
    if info.role in GAINS | BIASES:
        usual = 1.0 if info.role in GAINS else 0.0
        parameter.fill_(usual if info.start is None else info.start)
    elif values.zero:
        parameter.zero_()
    elif is_sharded(parameter):
        _fill_sharded(parameter, info, values, seed, zero_row)
    else:
        parameter.copy_(draw(tuple(parameter.shape), _all_of(parameter), info, values, seed, parameter.dtype, zero_row))


def _all_of(parameter: Tensor) -> Region:
    return tuple(slice(0, size) for size in parameter.shape)


def draw(
    shape: tuple[int, ...],
    region: Region,
    info: ParamInfo,
    values: Values,
    seed: int,
    dtype: torch.dtype,
    zero_row: int | None = None,
) -> Tensor:
    """The part of a parameter of this shape that lies in ``region``."""
    drawn = _drawn(shape, region, info, values, seed, dtype)
    if zero_row is not None and region[0].start <= zero_row < region[0].stop:
        drawn[zero_row - region[0].start] = 0.0
    return drawn


def _drawn(
    shape: tuple[int, ...], region: Region, info: ParamInfo, values: Values, seed: int, dtype: torch.dtype
) -> Tensor:
    # The product is taken in float64 for float64 models, and in float32 for others, so that it is rounded once.
    precision = torch.float64 if dtype == torch.float64 else torch.float32
    if values.starts_equal:
        return _common(shape, region, info, seed, "", lambda matrix: matrix.to(precision).mul_(values.init_std))
    own = draw_normals(shape, region, info.name, seed).to(precision)
    if not values.shared:
        return own.mul_(values.init_std)
    # The common part has a name of its own: otherwise it would be the first expert's.
    common = _common(shape, region, info, seed, " (common)", lambda matrix: matrix.to(precision))
    share = values.shared_weights
    return (math.sqrt(share) * common + math.sqrt(1 - share) * own) * values.init_std


def _common(
    shape: tuple[int, ...], region: Region, info: ParamInfo, seed: int, suffix: str, scale: Callable[[Tensor], Tensor]
) -> Tensor:
    """What all experts have in common: one matrix, drawn and scaled once, and repeated as a view."""
    if info.expert_axis is None:
        return scale(draw_normals(shape, region, (info.tied_as or info.name) + suffix, seed))
    axis = info.expert_axis % len(shape)
    before, after = slice(0, axis), slice(axis + 1, None)
    if info.is_flat(len(shape)):
        rows = shape[axis] // (info.experts or 1)
        size, cut = (*shape[before], rows, *shape[after]), (*region[before], slice(0, rows), *region[after])
        repeated = torch.arange(region[axis].start, region[axis].stop) % rows
        return scale(draw_normals(size, cut, info.name + suffix, seed)).index_select(axis, repeated)
    matrix = draw_normals(shape[before] + shape[after], region[before] + region[after], info.name + suffix, seed)
    scaled, count = scale(matrix), region[axis].stop - region[axis].start
    return scaled.unsqueeze(axis).expand(*scaled.shape[:axis], count, *scaled.shape[axis:])


def draw_normals(shape: tuple[int, ...], region: Region, name: str, seed: int) -> Tensor:
    """Standard normals: element i of the tensor, flattened, is element i of the sequence of ``(seed, name)``."""
    row = math.prod(shape[1:])
    if not shape or all(part == slice(0, size) for part, size in zip(region[1:], shape[1:], strict=True)):
        rows = region[0] if shape else slice(0, 1)
        flat = torch.from_numpy(normals(seed, name, rows.start * row, rows.stop * row))
        return flat.reshape((rows.stop - rows.start, *shape[1:]) if shape else ())
    # A shard of an inner axis is cut out of whole rows, which are drawn one at a time.
    cut = [
        torch.from_numpy(normals(seed, name, i * row, (i + 1) * row)).view(shape[1:])[region[1:]]
        for i in range(region[0].start, region[0].stop)
    ]
    empty = torch.empty(0, *(part.stop - part.start for part in region[1:]))
    return torch.stack(cut) if cut else empty


def _fill_sharded(parameter: DTensor, info: ParamInfo, values: Values, seed: int, zero_row: int | None) -> None:
    """Write a sharded parameter. Every rank draws its own shard; of other placements the whole, which torch cuts."""
    shape = tuple(parameter.shape)
    region = _local_region(parameter)
    if region is not None:
        local = parameter.to_local()
        if local.numel():
            local.copy_(draw(shape, region, info, values, seed, parameter.dtype, zero_row))
        return
    copy_whole(parameter, draw(shape, _all_of(parameter), info, values, seed, parameter.dtype, zero_row))


def copy_whole(tensor: Tensor, whole: Tensor) -> None:
    """Write values into a tensor, which may be sharded. Every rank has the same whole, so nothing is sent."""
    if not is_sharded(tensor):
        tensor.copy_(whole)
        return
    from torch.distributed.tensor import distribute_tensor

    whole = whole.to(device=tensor.device, dtype=tensor.dtype)
    tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None))


def _local_region(parameter: DTensor) -> Region | None:
    """The part of a parameter that this rank holds; None where it is not plainly sharded."""
    from torch.distributed.tensor import Replicate, Shard

    starts, stops = [0] * parameter.dim(), list(parameter.shape)
    coordinate = parameter.device_mesh.get_coordinate()
    if coordinate is None:
        return tuple(slice(0, 0) for _ in stops)
    for placement, index, ranks in zip(parameter.placements, coordinate, parameter.device_mesh.shape, strict=True):
        if type(placement) is Replicate:
            continue
        if type(placement) is not Shard:
            return None
        axis = placement.dim
        # torch.chunk's rule: equal parts rounded up, the last ones shorter or empty.
        part = -(-(stops[axis] - starts[axis]) // ranks)
        start = min(starts[axis] + index * part, stops[axis])
        starts[axis], stops[axis] = start, min(start + part, stops[axis])
    return tuple(slice(start, stop) for start, stop in zip(starts, stops, strict=True))
