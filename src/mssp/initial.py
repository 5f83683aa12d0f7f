"""Initial values, written into parameters of any device, dtype and sharding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from mssp.draws import normals
from mssp.planning.parameter import OWN
from mssp.planning.rules import BIASES, GAINS

if TYPE_CHECKING:
    from mssp.planning.parameter import ParamInfo
    from mssp.planning.plans import Values

Region = tuple[slice, ...]


def fill(parameter: Tensor, info: ParamInfo, values: Values, seed: int) -> None:
    """Write one parameter's initial value in place."""
    if info.start == OWN:
        return
    if info.role in GAINS | BIASES:
        usual = 1.0 if info.role in GAINS else 0.0
        parameter.fill_(usual if info.start is None else info.start)
    elif values.zero:
        parameter.zero_()
    elif isinstance(parameter, DTensor):
        _fill_sharded(parameter, info, values, seed)
    else:
        whole = tuple(slice(0, size) for size in parameter.shape)
        parameter.copy_(draw(tuple(parameter.shape), whole, info, values, seed, parameter.dtype))


def draw(
    shape: tuple[int, ...], region: Region, info: ParamInfo, values: Values, seed: int, dtype: torch.dtype
) -> Tensor:
    """The part of a parameter of this shape that lies in ``region``."""
    # float64 models get the product in float64; the others in float32, rounded once.
    precision = torch.float64 if dtype == torch.float64 else torch.float32
    if values.tied and info.expert_axis is not None:
        # One matrix for all experts, repeated as a view: equal to the bit, and drawn once.
        axis = info.expert_axis % len(shape)
        matrix = draw_normals(shape[:axis] + shape[axis + 1 :], region[:axis] + region[axis + 1 :], info.name, seed)
        matrix = matrix.to(precision) * values.init_std
        count = region[axis].stop - region[axis].start
        return matrix.unsqueeze(axis).expand(*matrix.shape[:axis], count, *matrix.shape[axis:])
    name = info.tied_as if values.tied and info.tied_as else info.name
    return draw_normals(shape, region, name, seed).to(precision) * values.init_std


def draw_normals(shape: tuple[int, ...], region: Region, name: str, seed: int) -> Tensor:
    """Standard normals: element i of the tensor, flattened, is element i of the sequence of ``(seed, name)``."""
    row = math.prod(shape[1:])
    if not shape or all(part == slice(0, size) for part, size in zip(region[1:], shape[1:], strict=True)):
        rows = region[0] if shape else slice(0, 1)
        flat = torch.from_numpy(normals(seed, name, rows.start * row, rows.stop * row))
        return flat.reshape((rows.stop - rows.start, *shape[1:]) if shape else ())
    # A shard of an inner axis: whole rows are drawn, one at a time, and cut.
    cut = [
        torch.from_numpy(normals(seed, name, i * row, (i + 1) * row)).view(shape[1:])[region[1:]]
        for i in range(region[0].start, region[0].stop)
    ]
    empty = torch.empty(0, *(part.stop - part.start for part in region[1:]))
    return torch.stack(cut) if cut else empty


def _fill_sharded(parameter: DTensor, info: ParamInfo, values: Values, seed: int) -> None:
    """Every rank draws its own part; exotic placements draw the whole and let torch cut it."""
    shape = tuple(parameter.shape)
    region = _local_region(parameter)
    if region is not None:
        local = parameter.to_local()
        if local.numel():
            local.copy_(draw(shape, region, info, values, seed, parameter.dtype))
        return
    whole = draw(shape, tuple(slice(0, size) for size in shape), info, values, seed, parameter.dtype)
    whole = whole.to(device=parameter.device, dtype=parameter.dtype)
    # Each rank holds the same whole, so nothing is sent.
    parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None))


def _local_region(parameter: DTensor) -> Region | None:
    """The part of the whole that this rank holds, for plain sharding; None where the placement is another."""
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
