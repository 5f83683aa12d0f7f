"""Chooses the fastest way of computing experts for a shape, from measured times: dispatch ``auto``.

A path is one way of computing experts. A table holds times of every path at some shapes. For other shapes, a simple
model fitted to the table (what a call, an expert, an operation and a number moved cost on this device) predicts the
time of a path. The prediction is corrected by the factor by which the model misses the nearest measured shapes.

``mssp dispatch`` measures a table on a machine. The environment variable MSSP_DISPATCH_TABLE names the table to use
instead of the one in the package.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mssp._files import write_whole

Floats = npt.NDArray[np.float64]
VARIABLE = "MSSP_DISPATCH_TABLE"
VERSION = 1
_NEIGHBOURS = 4


@dataclass(frozen=True)
class Work:
    """The sizes that decide which path is the fastest."""

    tokens: int
    width: int
    experts: int
    active: int
    expert_width: int
    gated: bool = False

    def operations(self, path: str) -> float:
        """Operations of the products, forward and backward; ``dense`` runs every expert on every token."""
        pairs = self.tokens * (self.experts if path == "dense" else self.active)
        matrices = 3 if self.gated else 2
        # Each matrix is used once forward and twice backward, a multiplication and an addition each time.
        return 2.0 * 3 * matrices * pairs * self.width * self.expert_width

    def costs(self, path: str) -> list[float]:
        """The terms of a path's time: one call, experts, operations, numbers in rows, hidden units."""
        dense = path == "dense"
        rows = self.tokens * (self.experts if dense else self.active)
        hidden = rows * self.expert_width * (2 if self.gated else 1)
        wide = (self.tokens if dense else rows) * self.width
        return [1.0, 0.0 if dense else self.experts, self.operations(path), wide, hidden]

    def coordinates(self) -> tuple[float, ...]:
        """Logarithms of the sizes, in which similar shapes are near each other."""
        sizes = (
            self.tokens * self.active / self.experts,  # rows of one expert
            self.width,
            self.expert_width * (1.5 if self.gated else 1.0),
            self.experts,
            self.experts / self.active,
        )
        return tuple(math.log2(size) for size in sizes)


@dataclass(frozen=True)
class Timing:
    """Milliseconds of each path, forward and backward, at one shape."""

    work: Work
    ms: Mapping[str, float]


@dataclass(frozen=True)
class Machine:
    """Everything measured on one device in one dtype."""

    device: str  # cuda, cpu
    name: str
    dtype: str
    measured: str  # when, and with which torch
    timings: Sequence[Timing]

    def predicted(self, work: Work, path: str, without: Timing | None = None) -> float:
        """The predicted milliseconds; the measured shape ``without`` is not used."""
        if path not in self._prices:
            return math.inf
        here = work.coordinates()
        measured = [timing for timing in self.timings if timing is not without and path in timing.ms]
        distances = [(math.dist(here, timing.work.coordinates()), timing) for timing in measured]
        nearest = sorted(distances, key=lambda pair: pair[0])[:_NEIGHBOURS]
        weights = [1 / (distance**2 + 1e-3) for distance, _ in nearest]
        misses = [math.log(timing.ms[path] / self._modelled(timing.work, path)) for _, timing in nearest]
        mean_miss = sum(weight * miss for weight, miss in zip(weights, misses, strict=True)) / sum(weights)
        return self._modelled(work, path) * math.exp(mean_miss)

    def best(self, work: Work, paths: Collection[str], without: Timing | None = None) -> str:
        return min(paths, key=lambda path: self.predicted(work, path, without))

    def regrets(self) -> list[float]:
        """For every shape, how much slower than the best path is the path chosen without the shape's own times."""
        chosen = [self.best(timing.work, list(timing.ms), without=timing) for timing in self.timings]
        pairs = zip(self.timings, chosen, strict=True)
        return [timing.ms[path] / min(timing.ms.values()) - 1 for timing, path in pairs]

    def _modelled(self, work: Work, path: str) -> float:
        return float(np.dot(work.costs(path), self._prices[path]))

    @cached_property
    def _prices(self) -> dict[str, Floats]:
        """For each path, milliseconds per unit of each cost."""
        prices = {}
        for path in dict.fromkeys(path for timing in self.timings for path in timing.ms):
            measured = [timing for timing in self.timings if path in timing.ms]
            ms = np.array([timing.ms[path] for timing in measured])
            costs = np.array([timing.work.costs(path) for timing in measured])
            prices[path] = _no_negative_prices(costs / ms[:, None])
        return prices


def _no_negative_prices(shares: Floats) -> Floats:
    """Prices of at least 0 that bring shares @ prices nearest to 1.

    Costs are given as shares of a measured time, so that small shapes count as much as large ones. There are five
    prices, and every choice of those that are not zero is tried.
    """
    count = shares.shape[1]
    best, smallest = np.ones(count), math.inf
    for size in range(1, count + 1):
        for kept in map(list, combinations(range(count), size)):
            prices = np.linalg.lstsq(shares[:, kept], np.ones(len(shares)), rcond=None)[0]
            miss = float(np.square(shares[:, kept] @ prices - 1).sum())
            if (prices >= 0).all() and miss < smallest:
                best, smallest = np.zeros(count), miss
                best[kept] = prices
    return best


def fastest(
    device: str,
    index: int | None,
    half: bool,
    tokens: int,
    width: int,
    experts: int,
    active: int,
    expert_width: int,
    gated: bool,
    paths: tuple[str, ...],
) -> str:
    """The path that is expected to be the fastest of ``paths``.

    It takes plain numbers and returns a name, which torch.compile treats as a constant.
    """
    return _looked_up(device, index, half, Work(tokens, width, experts, active, expert_width, gated), paths)


# torch.compiler.assume_constant_result sets this too, but imports the compiler, which most users do not need.
fastest._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=4096)
def _looked_up(device: str, index: int | None, half: bool, work: Work, paths: tuple[str, ...]) -> str:
    candidates = [machine for machine in table() if machine.device == device]
    if not candidates or work.active == work.experts:  # with all experts active, every path does what dense does
        return "dense"
    name = device_name(torch.device(device) if index is None else torch.device(device, index))
    # Tables of the same device come first, then tables of the same precision.
    candidates.sort(key=lambda machine: (machine.name != name, (machine.dtype == "bfloat16") != half))
    return candidates[0].best(work, paths)


def about(tokens: int, step: int = 2) -> int:
    """The geometric mean of the two powers of ``step`` that ``tokens`` lies between.

    Batches of similar size then have the same fastest path. torch.compile makes a graph for every value and gives up
    after eight graphs, so it needs large steps.
    """
    size = step
    while size < tokens:
        size *= step
    return int(size / math.sqrt(step) + 0.5)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def table() -> list[Machine]:
    """The table in use: the one MSSP_DISPATCH_TABLE names, or the package's."""
    path = os.environ.get(VARIABLE)
    if not path:
        return loads((files("mssp.nn.experts") / "dispatch_table.json").read_text("utf-8"), "")
    if not Path(path).is_file():
        raise ValueError(f"{VARIABLE} names {path}, which is no file: `mssp dispatch` writes one")
    return load(Path(path))


def load(path: Path) -> list[Machine]:
    return loads(path.read_text(encoding="utf-8"), f"{path}: ")


def save(path: Path, machines: Sequence[Machine]) -> None:
    """Writes measured machines to a file, and keeps the file's entries for other devices."""
    kept = load(path) if path.exists() else []
    measured = {(machine.name, machine.dtype) for machine in machines}
    kept = [machine for machine in kept if (machine.name, machine.dtype) not in measured]
    write_whole(path, dumps([*kept, *machines]))


def loads(text: str, where: str) -> list[Machine]:
    try:
        document = json.loads(text)
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']}, expected {VERSION}")
        return [_machine(entry) for entry in document["machines"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}not a table of measured paths ({error}): `mssp dispatch` writes one") from None


def dumps(machines: Sequence[Machine]) -> str:
    """One line per shape: the sizes, then milliseconds."""
    blocks = []
    for machine in machines:
        paths = list(machine.timings[0].ms)
        head = {key: value for key, value in asdict(machine).items() if key != "timings"}
        rows = [
            json.dumps([*asdict(timing.work).values(), *(float(f"{timing.ms[path]:.3g}") for path in paths)])
            for timing in machine.timings
        ]
        joined = ",\n".join(rows)
        blocks.append(f'{json.dumps({**head, "paths": paths})[:-1]}, "timings": [\n{joined}]}}')
    machines_text = ",\n".join(blocks)
    return f'{{"version": {VERSION}, "machines": [\n{machines_text}]}}\n'


def _machine(entry: dict[str, Any]) -> Machine:
    sizes = len(fields(Work))
    timings = [
        Timing(Work(*row[:sizes]), dict(zip(entry["paths"], map(float, row[sizes:]), strict=True)))
        for row in entry["timings"]
    ]
    if any(ms <= 0 for timing in timings for ms in timing.ms.values()):
        raise ValueError("a time that is not positive")
    return Machine(entry["device"], entry["name"], entry["dtype"], entry["measured"], timings)
