"""Starts that follow from the number of heads: a larger model takes those of the base, spread over its own heads.

Most parameters that keep the model's own start are drawn head by head, or start at one number. Some count their heads:
transformers starts the decay rates of Mamba 2 at 1, 2, and so on up to their number. With more heads, fewer of them
would remember anything, and the larger model would be another one than the one that was tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mssp.apply.description import name_cleaner
from mssp.hf.own_values import built_with_own_values
from mssp.hf.vocabulary import Place, for_all_blocks
from mssp.planning.parameter import OWN, ParamInfo

_SEEDS = (0, 1)  # what is the same for both does not depend on random numbers


def spread_starts(model: nn.Module, infos: Mapping[str, ParamInfo], base: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The parameters that take the base's start, each with its values. ``base`` may be on the meta device."""
    clean = name_cleaner(model)
    at_base: dict[str, list[tuple[str, torch.Size]]] = {}
    for name, parameter in base.named_parameters():
        at_base.setdefault(_local(name), []).append((name, parameter.shape))
    grown = [
        (_local(clean(name)), parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and clean(name) in infos and infos[clean(name)].start == OWN
    ]
    grown = [(local, each) for local, each in grown if each.shape not in {shape for _, shape in at_base[local]}]
    if not grown:
        return []
    kept = {name for local, _ in grown for name, _ in at_base[local]}
    starts = [built_with_own_values(base, kept, seed) for seed in _SEEDS]
    pairs: list[tuple[Tensor, Tensor]] = []
    for local, parameter in grown:
        start = _counted(starts, [name for name, _ in at_base[local]])
        if start is not None:
            pairs.append((parameter, spread(start.flatten(), parameter.numel()).view(parameter.shape)))
    return pairs


def counted_starts(model: nn.Module, infos: Mapping[str, ParamInfo]) -> list[str]:
    """The parameters that take the start of a base with fewer heads, by their names for all blocks."""
    kept = {name for name, info in infos.items() if info.start == OWN}
    starts = [built_with_own_values(model, kept, seed) for seed in _SEEDS] if kept else []
    blocks: dict[str, list[str]] = {}
    for name in kept & starts[0].keys() if starts else ():
        blocks.setdefault(for_all_blocks(name), []).append(name)
    return sorted(pattern for pattern, names in blocks.items() if _counted(starts, names) is not None)


def _counted(starts: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> Tensor | None:
    """The start of a parameter that counts its entries: it is no draw, is the same in all blocks, and not one number.

    ``starts`` are from several seeds.
    """
    start = starts[0][names[0]]
    if not all(torch.equal(values[name], start) for values in starts for name in names):
        return None
    is_vector = start.numel() > 1 and start.numel() == max(start.shape)
    return start if is_vector and bool((start != start.max()).any()) else None


def spread(values: Tensor, count: int) -> Tensor:
    """So many values, evenly spaced from the first to the last of those given, and linear between them.

    >>> spread(torch.tensor([0.0, 1.0, 3.0]), 5).tolist()
    [0.0, 0.5, 1.0, 2.0, 3.0]
    """
    places = np.linspace(0, len(values) - 1, count)
    return torch.from_numpy(np.interp(places, np.arange(len(values)), values.double().numpy())).to(values.dtype)


def _local(name: str) -> str:
    return for_all_blocks(Place.of(name).local)
