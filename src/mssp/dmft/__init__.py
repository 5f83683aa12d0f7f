"""The limits of MoEs of infinite size, solved by dynamical mean-field theory (docs/dmft.md).

experiment = Experiment(plan, inputs, targets, steps)     the family of a plan, and the data it is trained on
solution = solve(experiment)                              its limit: outputs, kernels, router, with errors
comparison = compare(solution, widths=[64, 128, 256])     finite networks of that family, compared with the limit

It imports planning, apply, nn, replicas and ladders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.dmft.comparison import Comparison, compare
    from mssp.dmft.examples import example
    from mssp.dmft.experiment import Experiment
    from mssp.dmft.solution import Solution, solve

_HOMES = {
    "comparison": ("Comparison", "compare"),
    "examples": ("example",),
    "experiment": ("Experiment",),
    "solution": ("Solution", "solve"),
}
__all__ = ["Comparison", "Experiment", "Solution", "compare", "example", "solve"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
