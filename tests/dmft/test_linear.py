"""Linear MoEs, whose limit needs no sampling: a second derivation, which shares nothing with the solver.

With the identity for an activation, and gates that are the same for all experts, the limit is closed. It is derived
here from the network alone, which is

    u = W1 x    ψ_i = Q_i u    a_i = sigmoid(ψ_i)    z_i = W2_i u    h = (1/M) Σ_i a_i W3_i z_i    f = v·h/N

and on the way back b_i = W3_iᵀ v, over N in Regime II, where it grows like that.

Scales. Stacked over experts, there are two matrices, W2 and the V = W3ᵀ of b = V v, with all experts' units on one
side. Measure vectors over the width by ⟨x, y⟩ = x·y/N, and vectors over units by x·y/(M N), in Regime II by x·y/M.
With V* and W2* the adjoints for these products, and the learning rates put in, no power of a size is left:

    h = a V* z    f = ⟨v, h⟩    g = N ∂f/∂u = a W2* b + a' ⟨b, z⟩ q    ψ = ⟨q, u⟩

and a step with w = (y - f)/P, summed over inputs, is

    W2 += η c2 w a b uᵀ    V += η c3 w a z vᵀ    v += η c4 w h    u(x') += η c1 w (x'·x/D) g    q += η cQ w a' ⟨b, z⟩ u

Initial matrices. Let A be Gaussian, looked at so far only through some A y and some A* p. On a new direction x,
orthogonal to those y, what A x has along those p is known from A* p. The rest is independent of all that was seen: in
the limit it is orthogonal to everything, and its squared length is that of x times a constant, the gain. So vectors
have finitely many coordinates, and each look at a new direction adds one. With entries of variance σ2²/N in W2, and
σ3²/N_e in W3 (σ3² M/N_e in Regime II), the gains are

                  W2                  W2*             V               V*
    I, III        σ2² N_e/N = σ2² ι   σ2²/M           σ3²             σ3²/(ι M)
    II            σ2² N_e             σ2² N/M         σ3² M/N         σ3²/N_e

In Regime III, M is infinite: independent experts' initial matrices average out. Experts that start as one stay one,
and count as M = 1.

Gates. In Regimes I and III, b_i·z_i/N is an average over many units and the same for all experts, and so is ψ if the
router starts from zero. In Regime I it starts with the variance σQ²/N², which is too small for ψ, but not for u: what
experts share of it, the initial q, has the squared length σQ²/M. In Regime II, b_i·z_i is a sum over few units, and
gates differ. There, the router starts and learns by next to nothing, and is followed to first order; units are
Gaussian, which gives the second moments of b_i·z_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest

from mssp.dmft import Experiment, Solution, example, solve
from mssp.dmft.constants import Constants
from mssp.dmft.observables import Array, Observables, equal_times, relative
from mssp.planning.shape import Shape

STEPS, LR = 8, 0.8
TINY = 1e-6
RATES = {"embedding": 0.7, "router": 1.6, "expert_in": 1.3, "expert_out": 0.8, "readout": 0.6}
STDS = {"embedding": 1.3, "router": 2.2, "expert_in": 1.2, "expert_out": 0.9, "readout": 0.8}
# No two of N_e, ι, κ, M and their inverses are alike, so that none can stand for another.
SMALLEST = {
    "I": Shape(width=16, expert_width=24, experts=3, active=3, depth=1),
    "II": Shape(width=16, expert_width=3, experts=12, active=12, depth=1),
    "III": Shape(width=16, expert_width=12, experts=8, active=8, depth=1),
}
# Under muP in Regimes II and III, nothing moves from a zero readout.
CASES = [
    ("I", "mssp", "zero"),
    ("I", "mssp", "mup"),
    ("I", "mup", "zero"),
    ("I", "mup", "mup"),
    ("II", "mssp", "zero"),
    ("II", "mssp", "mup"),
    ("II", "mup", "mup"),
    ("III", "mssp", "zero"),
    ("III", "mssp", "mup"),
    ("III", "mup", "mup"),
]
SIZES = {  # that the limit depends on
    "I": ("experts", "expert_width_ratio"),
    "II": ("experts_per_width", "expert_width"),
    "III": ("expert_width_ratio",),
}


@dataclass
class Matrix:
    """A Gaussian matrix of infinite size, as far as it has been looked at."""

    gain: float
    adjoint_gain: float
    axes: Iterator[Array]  # those that no vector has used yet
    entries: Array
    seen: list[Array] = field(default_factory=list)
    adjoint_seen: list[Array] = field(default_factory=list)

    def times(self, x: Array) -> Array:
        for new in _new_direction(x, self.seen):
            self.entries += self.gain**0.5 * np.outer(next(self.axes), new)
        return self.entries @ x

    def adjoint_times(self, x: Array) -> Array:
        for new in _new_direction(x, self.adjoint_seen):
            self.entries += self.adjoint_gain**0.5 * np.outer(new, next(self.axes))
        return x @ self.entries


def _new_direction(x: Array, seen: list[Array]) -> list[Array]:
    """What x has beyond what was seen, of length one, if anything; it counts as seen from now on."""
    rest = x
    for _ in range(2):  # once leaves rounding errors, which count where little is new
        for each in seen:
            rest = rest - each * (each @ rest)
    length = np.linalg.norm(rest)
    if length <= 1e-9 * np.linalg.norm(x):
        return []
    seen.append(rest / length)
    return [rest / length]


def reference(of: Constants, experiment: Experiment) -> Observables:
    """The limit of an experiment with linear activations."""
    regime, x, y = experiment.plan.regime, experiment.all_inputs, experiment.targets
    overlaps = x @ x.T / x.shape[1]
    variance, rate = of.variance, of.rate
    # At each time, each input is new to two matrices and their adjoints, at most; the rest is there at the start.
    size = 4 * len(x) * (experiment.steps + 1) + len(x) + 2
    axes = iter(np.eye(size))
    into, out = variance["expert_in"], variance["expert_out"]
    if regime == "II":
        units = float(of.expert_width)
        gains = into * units, into / of.experts_per_width, out * of.experts_per_width, out / units
    else:
        units = of.expert_width_ratio
        per_expert = 1 / of.experts if regime == "I" else float(of.tied)
        gains = into * units, into * per_expert, out, out * per_expert / units
    w2 = Matrix(gains[0], gains[1], axes, np.zeros((size, size)))
    w3_t = Matrix(gains[2], gains[3], axes, np.zeros((size, size)))
    u = variance["embedding"] ** 0.5 * np.linalg.cholesky(overlaps) @ np.array([next(axes) for _ in x])
    v = variance["readout"] ** 0.5 * next(axes)
    q = (variance["router"] / of.experts) ** 0.5 * next(axes) if regime == "I" else np.zeros(size)

    past: list[dict[str, Array]] = []
    for _ in range(experiment.steps + 1):
        psi = u @ q
        a = 1 / (1 + np.exp(-psi))
        slope = a * (1 - a)
        b = w3_t.times(v)
        z = np.array([w2.times(each) for each in u])
        h = a[:, None] * np.array([w3_t.adjoint_times(each) for each in z])
        to_router = slope * (z @ b)
        g = np.outer(a, w2.adjoint_times(b)) + np.outer(to_router, q)
        f = h @ v
        w = np.zeros(len(x))
        w[: len(y)] = (y - f[: len(y)]) / len(y)
        vectors = {"u": u, "z": z, "h": h, "g": g, "b": np.tile(b, (len(x), 1)), "v": v}
        past.append({**vectors, "f": f, "w": w, "a": a, "psi": psi, "slope": slope, "to_router": to_router})
        w2.entries = w2.entries + rate["expert_in"] * np.outer(b, (w * a) @ u)
        w3_t.entries = w3_t.entries + rate["expert_out"] * np.outer((w * a) @ z, v)
        q = q + rate["router"] * (w * to_router) @ u
        v = v + rate["readout"] * w @ h
        u = u + rate["embedding"] * (overlaps * w) @ g

    f, psi, readout = (np.array([each[name] for each in past]) for name in ("f", "psi", "v"))
    u, z, h, g, b, w, a, slope, to_router = (
        np.concatenate([each[name] for each in past])
        for name in ("u", "z", "h", "g", "b", "w", "a", "slope", "to_router")
    )
    router = np.outer(to_router, to_router)
    found = {}
    if regime == "II":
        among_experts = np.outer(slope, slope) * ((b @ b.T) * (z @ z.T) + (b @ z.T) * (z @ b.T)) / units
        router = router + among_experts
        times = np.arange(len(u)) // len(x)
        learned = rate["router"] * w * (u @ u.T) * (times[:, None] > times)
        psi_variance = np.diag(learned @ among_experts @ learned.T + variance["router"] * u @ u.T)
        found["router_variance"] = psi_variance.reshape(psi.shape)
    return found | {
        "f": f,
        "phi1": u @ u.T,
        "phi3": h @ h.T,
        "g1": g @ g.T,
        "g3": readout @ readout.T,
        "phi2": equal_times(np.outer(a, a) * (z @ z.T) / units, len(x)),
        "g2": equal_times(np.outer(a, a) * (b @ b.T) / units, len(x)),
        "router_gradient": equal_times(router, len(x)),
        "router_mean": psi,
    }


@cache
def solved(regime: str, scheme: str, readout: str) -> Solution:
    learns, starts = regime != "II", regime == "I"
    experiment = example(
        regime,
        scheme,
        inputs=2,
        test_inputs=1,
        steps=STEPS,
        lr=LR,
        rates=RATES if learns else {**RATES, "router": TINY},
        stds=STDS if starts else {**STDS, "router": TINY},
        readout=readout,
        smallest=SMALLEST[regime],
        activation="identity",
    )
    lengths = np.array([[1.2], [0.9]])  # so that x·x/D is not one
    return solve(replace(experiment, inputs=experiment.inputs * lengths), samples=10_000, solves=16)


def off(solution: Solution, limit: Observables, sigmas: float) -> dict[str, str]:
    """What differs by more than that many standard errors, as a whole, and by how much."""
    found = {}
    for name, expected in limit.items():
        difference = relative(solution.mean[name] - expected, expected)
        error = relative(solution.found.error[name], expected)
        if difference > sigmas * error:
            found[name] = f"{difference:.2%} with an error of {error:.2%}"
    return found


@pytest.mark.parametrize(("regime", "scheme", "readout"), CASES)
def test_the_limit_of_a_linear_moe_is_the_one_derived_by_hand(regime: str, scheme: str, readout: str) -> None:
    solution = solved(regime, scheme, readout)
    limit = reference(solution.constants, solution.experiment)
    assert not off(solution, limit, sigmas=4)
    # Errors are small enough for that to mean something, and f goes all the way to the targets.
    assert max(relative(solution.found.error[name], limit[name]) for name in limit) < 0.01
    assert max(relative(solution.found.error[name], limit[name]) for name in ("f", "phi1", "phi3", "g3")) < 0.0025
    assert abs(limit["f"][:, 0]).max() > solution.experiment.targets[0]


@pytest.mark.parametrize(("regime", "scheme", "readout"), CASES)
def test_twice_any_constant_is_seen(regime: str, scheme: str, readout: str) -> None:
    solution = solved(regime, scheme, readout)
    for change, wrong in _wrong_constants(solution.constants, regime):
        assert off(solution, reference(wrong, solution.experiment), sigmas=20), change


def _wrong_constants(of: Constants, regime: str) -> Iterator[tuple[str, Constants]]:
    for role in of.rate:
        yield f"rate of {role}", replace(of, rate={**of.rate, role: 2 * of.rate[role]})
        # What is zero has no double; in Regime III the router's start is there only to be small.
        if of.variance[role] and (regime, role) != ("III", "router"):
            yield f"variance of {role}", replace(of, variance={**of.variance, role: 2 * of.variance[role]})
    for size in SIZES[regime]:
        yield size, replace(of, **{size: 2 * getattr(of, size)})
    if regime == "III":
        yield "tied", replace(of, tied=not of.tied)


def test_a_scheme_is_told_from_the_other() -> None:
    for regime in ("II", "III"):
        mssp, mup = solved(regime, "mssp", "mup"), solved(regime, "mup", "mup")
        assert "f" in off(mup, reference(mssp.constants, mssp.experiment), sigmas=20)
