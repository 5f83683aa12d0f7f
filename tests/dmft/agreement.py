"""How far solutions of the limit contradict themselves and finite networks: the measure that finds planted mistakes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mssp import Shape
from mssp.dmft import Experiment, example, solve
from mssp.dmft.comparison import trained
from mssp.dmft.observables import Observables, averaged, relative

# Settings in which all layers count, and in which the router counts most. Sizes whose products are none of the others.
_LAYERS = {
    "rates": {"embedding": 1.5, "router": 6.0, "expert_in": 2.0, "expert_out": 0.8, "readout": 1.3},
    "stds": {"embedding": 1.4, "router": 1.3, "expert_in": 1.5, "expert_out": 0.9},
}
_ROUTER = {
    "rates": {"embedding": 1.5, "router": 30.0, "expert_in": 0.5, "expert_out": 0.8, "readout": 1.0},
    "stds": {"embedding": 1.5, "router": 3.0, "expert_in": 1.5, "expert_out": 1.5},
}
SETTINGS = [(scheme, constants) for constants in (_LAYERS, _ROUTER) for scheme in ("mssp", "mup")]
_MEMBERS = {
    "I": Shape(width=16, expert_width=8, experts=3, active=3, depth=1),
    "II": Shape(width=16, expert_width=3, experts=8, active=8, depth=1),
    "III": Shape(width=16, expert_width=12, experts=8, active=8, depth=1),
}
_WIDTHS = {"I": (128, 256), "II": (128, 256), "III": (48, 96)}
_SCATTER = 0.02  # relative: what is left of the widths' bias after extrapolation, at most
NOTICED = 4.0  # standard errors beyond that


def experiments(regime: str) -> list[Experiment]:
    return [
        example(
            regime,
            scheme,
            inputs=3,
            test_inputs=1,
            steps=8,
            lr=0.5,
            readout="mup",
            smallest=_MEMBERS[regime],
            rates=constants["rates"],
            stds=constants["stds"],
        )
        for scheme, constants in SETTINGS
    ]


@dataclass(frozen=True)
class Reference:
    """Finite networks, extrapolated: what falls as 1/N cancels between two widths."""

    mean: Observables
    error: Observables

    @classmethod
    def of(cls, experiment: Experiment, networks: int, device: torch.device) -> Reference:
        small, large = _WIDTHS[experiment.plan.regime or ""]
        first = averaged(trained(experiment, small, range(networks), device))
        second = averaged(trained(experiment, large, range(networks, networks + networks // 2), device))
        return cls(
            {name: 2 * second.mean[name] - first.mean[name] for name in first.mean},
            {name: np.sqrt(4 * second.error[name] ** 2 + first.error[name] ** 2) for name in first.mean},
        )


def contradicted(
    experiment: Experiment,
    reference: Reference | None,
    samples: int,
    device: torch.device,
    solves: int = 4,
    seed: int = 0,
) -> tuple[float, str]:
    """By how many standard errors a solution contradicts itself or finite networks, and in what; the largest."""
    try:
        solution = solve(experiment, samples=samples, solves=solves, seed=seed, device=device)
    except ValueError as error:
        return float("inf"), str(error)
    scores = {
        f"both sides of {name}": _score(each, solution.contradictions.error[name])
        for name, each in solution.contradictions.mean.items()
    }
    for name, mean in (reference.mean if reference is not None else {}).items():
        assert reference is not None
        size = relative(mean, np.ones(1)) or 1.0
        noise = np.sqrt(reference.error[name] ** 2 + solution.found.error[name] ** 2)
        scores[name] = _score((solution.mean[name] - mean) / size, noise / size, _SCATTER)
    worst = max(scores, key=lambda name: scores[name])
    return scores[worst], worst


def _score(difference: np.ndarray, error: np.ndarray, allowed: float = 0.0) -> float:
    """The size of a difference beyond what is allowed, in units of the size that its error has."""
    noise = float(np.linalg.norm(error))
    return max(float(np.linalg.norm(difference)) - allowed, 0.0) / noise if noise > 1e-9 else 0.0
