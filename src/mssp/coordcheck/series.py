"""What was measured: every quantity for every size, step and seed, and those that follow from others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """Measured values.

    Args:
        sizes: what grows, in order: widths, or depths.
        values: by name, [sizes, steps + 1, seeds]; index t is after t updates.
    """

    sizes: tuple[int, ...]
    values: Mapping[str, Numbers]

    @classmethod
    def of(cls, by_size: Mapping[int, Mapping[str, Numbers]], optimizer: str) -> Series:
        """From what was measured at each size, [steps + 1, seeds]; a quantity that one size lacks is left out."""
        sizes = tuple(sorted(by_size))
        names = [name for name in by_size[sizes[0]] if all(name in by_size[size] for size in sizes)]
        measured = {name: np.stack([by_size[size][name] for size in sizes]) for name in names}
        with np.errstate(invalid="ignore", over="ignore"):
            return cls(sizes, {**measured, **dict(_derived(measured, optimizer))})

    def of_seeds(self, chosen: slice) -> Series:
        """The same with some of the seeds."""
        return Series(self.sizes, {name: each[..., chosen] for name, each in self.values.items()})

    def diverged(self) -> tuple[int, int] | None:
        """The size and the update at which something was no longer finite, the earliest; None if nothing was."""
        found = []
        for name, values in self.values.items():
            lost = ~np.isfinite(values[:, :-1] if name == "loss" else values)  # a loss belongs to an update to come
            for size, at_size in zip(self.sizes, lost, strict=True):
                found += [(int(step), size) for step in at_size.any(1).nonzero()[0][:1]]
        if not found:
            return None
        step, size = min(found)
        return size, step

    @property
    def steps(self) -> int:
        return int(next(iter(self.values.values())).shape[1]) - 1

    @property
    def seeds(self) -> int:
        return int(next(iter(self.values.values())).shape[2])


def _derived(measured: Mapping[str, Numbers], optimizer: str) -> Iterator[tuple[str, Numbers]]:
    roles = [name.removeprefix("update/") for name in measured if name.startswith("update/")]
    for role in roles:
        get = {name.removesuffix(f"/{role}"): value for name, value in measured.items() if name.endswith(f"/{role}")}
        if "input" in get and "effective" in get:
            # With the input's own size divided out: what this layer's learning rate does, whatever comes in.
            yield f"normalised/{role}", _ratio(get["effective"], get["input"])
            yield f"alignment/p/{role}", _ratio(get["effective"], get["update"] * get["input"])
        if "propagating" in get and "input-change" in get:
            yield f"alignment/q/{role}", _ratio(get["propagating"], get["weights"] * get["input-change"])
        if optimizer != "sgd":
            yield f"rate/{role}", get["update"]  # Adam's updates are as large as its learning rate
        elif "gradient-sum" in get:
            yield f"rate/{role}", _ratio(get["update"], get["gradient-sum"])  # SGD's are learning rate times gradient
        if "eps" in get and "gradient" in get:
            yield f"faithfulness/{role}", _ratio(get["eps"], get["gradient"])


def _ratio(above: Numbers, below: Numbers) -> Numbers:
    """Zero where there is nothing to divide by: a term that is not there yet."""
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)
