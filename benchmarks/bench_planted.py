"""How far the solver of limits can be trusted: twice any term of any single-site equation must be noticed.

    python benchmarks/bench_planted.py                        all terms, a quarter of an hour on two cores
    python benchmarks/bench_planted.py --regimes II --samples 320000 --networks 4000

Terms are found in the source: every covariance that is drawn from, every summand of a memory, every covariance and
memory that a site hands on. Each is doubled in turn, and the wrong solution is held against two things it cannot know
of: itself (what passes through a layer of weights is the same on both sides) and finite networks, extrapolated to
infinite size from two widths. Of several settings, one has to notice: not every term counts in each.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import inspect
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mssp import Shape
from mssp.dmft import Experiment, example, solve, solver
from mssp.dmft.finite import trained
from mssp.dmft.observables import Observables, averaged, relative

FILES = {
    "regime_one": ("RegimeOne", ("I",)),
    "regime_two": ("RegimeTwo", ("II",)),
    "regime_three": ("RegimeThree", ("III",)),
    "features": ("Features", ("I", "II", "III")),
    "readout": ("Readout", ("I", "II", "III")),
}
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


@dataclass(frozen=True)
class Mistake:
    """A term that is doubled, by its place among the terms of a file."""

    file: str
    place: int
    text: str

    @property
    def regimes(self) -> tuple[str, ...]:
        return FILES[self.file][1]

    def __str__(self) -> str:
        return f"{self.file}: 2 × {self.text}"


def mistakes(file: str) -> list[Mistake]:
    tree = _tree(file)
    return [Mistake(file, place, ast.unparse(term)) for place, term in enumerate(_terms(tree))]


def _tree(file: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(f"mssp.dmft.{file}")))


def _terms(tree: ast.Module) -> Iterator[ast.expr]:
    """In the order of the source, which is the same for every copy of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("drawn", "extended") and len(node.args) == 1:
                yield node.args[0]
            if node.func.attr == "remembered":
                yield from _summands(node.args[0])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Seen":
            for keyword in node.keywords:
                yield from _summands(keyword.value)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "r" and isinstance(node.value, ast.BinOp):
                yield node.value.right  # the number of units that pull at a gate
            if node.targets[0].id in ("initial", "scale", "step", "moved"):
                yield node.value
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "scale":
            assert node.value is not None
            yield node.value


def _summands(expression: ast.expr) -> Iterator[ast.expr]:
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
        yield from _summands(expression.left)
        yield from _summands(expression.right)
    elif isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Div):
        yield from _summands(expression.left)
    else:
        yield expression


class _Doubling(ast.NodeTransformer):
    def __init__(self, term: ast.expr) -> None:
        self._term = term

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self._term:
            assert isinstance(node, ast.expr)
            return ast.BinOp(ast.Constant(2.0), ast.Mult(), node)
        found: ast.AST = super().visit(node)
        return found


@contextlib.contextmanager
def planted(mistake: Mistake) -> Iterator[None]:
    """The solver with the mistake in it."""
    tree = _tree(mistake.file)
    term = list(_terms(tree))[mistake.place]
    wrong = _Doubling(term).visit(tree)
    module = types.ModuleType(f"wrong_{mistake.file}")
    exec(compile(ast.unparse(wrong), module.__name__, "exec"), module.__dict__)
    name, _ = FILES[mistake.file]
    right = getattr(solver, name)
    setattr(solver, name, getattr(module, name))
    try:
        yield
    finally:
        setattr(solver, name, right)


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
        found = solve(experiment, samples=samples, solves=solves, seed=seed, device=device)
    except ValueError as error:
        return float("inf"), str(error)
    scores = {
        f"both sides of {name}": _score(each, found.contradictions.error[name])
        for name, each in found.contradictions.mean.items()
    }
    for name, mean in (reference.mean if reference is not None else {}).items():
        assert reference is not None
        size = relative(mean, np.ones(1)) or 1.0
        noise = np.sqrt(reference.error[name] ** 2 + found.found.error[name] ** 2)
        scores[name] = _score((found.mean[name] - mean) / size, noise / size, _SCATTER)
    worst = max(scores, key=lambda name: scores[name])
    return scores[worst], worst


def _score(difference: np.ndarray, error: np.ndarray, allowed: float = 0.0) -> float:
    """The size of a difference beyond what is allowed, in units of the size that its error has."""
    noise = float(np.linalg.norm(error))
    return max(float(np.linalg.norm(difference)) - allowed, 0.0) / noise if noise > 1e-9 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--regimes", nargs="+", default=["I", "II", "III"])
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--solves", type=int, default=6)
    parser.add_argument("--networks", type=int, default=400, help="of the smaller of two widths; half of the larger")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    missed, tried, start = [], 0, time.perf_counter()
    for regime in asked.regimes:
        tests = [(each, Reference.of(each, asked.networks, device)) for each in experiments(regime)]
        right = [contradicted(*test, asked.samples, device, asked.solves) for test in tests]
        print(f"Regime {regime}, as it is: {_told(right)}", flush=True)
        for mistake in (each for file in FILES for each in mistakes(file) if regime in each.regimes):
            with planted(mistake):
                found = [contradicted(*test, asked.samples, device, asked.solves) for test in tests]
            tried += 1
            noticed = max(score for score, _ in found) > NOTICED
            missed += [] if noticed else [f"{regime} {mistake}"]
            print(f"{'found ' if noticed else 'MISSED'} {mistake}: {_told(found)}", flush=True)
    print(f"{tried - len(missed)} of {tried} found in {time.perf_counter() - start:.0f} s; missed: {missed or 'none'}")


def _told(scores: Sequence[tuple[float, str]]) -> str:
    return "  ".join(f"{score:.1f} ({what})" for score, what in scores)


if __name__ == "__main__":
    main()
