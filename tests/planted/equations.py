"""Twice a term of a single-site equation: mistakes that solutions of the limit must not survive.

Every term has a name, of the site, the quantity on the left of its equation, how the term enters it, and the layer
whose weights it passes through: "regime_two: h2 learned expert_in" is what gradient descent adds to h² through the
experts' first layer. A term is noise (a covariance that is drawn from), a response (to what went through the same
weights at random), learned (what gradient descent has added to weights), or a number of units.

The place of a term is the method that computes it, what it feeds there (a call or a variable), and its number among all
that feed the same, in the order of the source. So modules may move and expressions may be rewritten; where a term comes
or goes, or two of them change places, ``TERMS`` has to follow.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from mssp.dmft.sites.features import Features
from mssp.dmft.sites.readout import Readout
from mssp.dmft.sites.regime_one import RegimeOne
from mssp.dmft.sites.regime_three import RegimeThree
from mssp.dmft.sites.regime_two import RegimeTwo

SITES: dict[str, type] = {
    "regime_one": RegimeOne,
    "regime_two": RegimeTwo,
    "regime_three": RegimeThree,
    "features": Features,
    "readout": Readout,
}
REGIMES = {"regime_one": ("I",), "regime_two": ("II",), "regime_three": ("III",)}  # all others: in all three


class Place(NamedTuple):
    method: str
    feeds: str
    number: int


TERMS = {
    "regime_one: psi initial router": Place("forward", "initial", 0),
    "regime_one: psi learned router": Place("forward", "remembered", 0),
    "regime_one: h2 noise expert_in": Place("forward", "drawn", 0),
    "regime_one: h2 response expert_in": Place("forward", "remembered", 1),
    "regime_one: h2 learned expert_in": Place("forward", "remembered", 2),
    "regime_one: K3 noise expert_out": Place("forward", "Seen(noise)", 0),
    "regime_one: M3 response expert_out": Place("forward", "Seen(memory)", 0),
    "regime_one: M3 learned expert_out": Place("forward", "Seen(memory)", 1),
    "regime_one: z noise expert_out": Place("backward", "drawn", 0),
    "regime_one: z response expert_out": Place("backward", "remembered", 0),
    "regime_one: z learned expert_out": Place("backward", "remembered", 1),
    "regime_one: r number of units": Place("backward", "r", 0),
    "regime_one: K1 noise expert_in": Place("backward", "Seen(noise)", 0),
    "regime_one: D response expert_in": Place("backward", "Seen(memory)", 0),
    "regime_one: D learned expert_in": Place("backward", "Seen(memory)", 1),
    "regime_one: D learned router": Place("backward", "Seen(memory)", 2),
    "regime_one: drive initial router": Place("drive", "scale", 0),
    "regime_two: psi noise router": Place("forward", "drawn", 0),
    "regime_two: psi response router": Place("forward", "remembered", 0),
    "regime_two: psi learned router": Place("forward", "remembered", 1),
    "regime_two: h2 noise expert_in": Place("forward", "drawn", 1),
    "regime_two: h2 response expert_in": Place("forward", "remembered", 2),
    "regime_two: h2 learned expert_in": Place("forward", "remembered", 3),
    "regime_two: K3 noise expert_out": Place("forward", "Seen(noise)", 0),
    "regime_two: M3 response expert_out": Place("forward", "Seen(memory)", 0),
    "regime_two: M3 learned expert_out": Place("forward", "Seen(memory)", 1),
    "regime_two: z noise expert_out": Place("backward", "drawn", 0),
    "regime_two: z response expert_out": Place("backward", "remembered", 0),
    "regime_two: z learned expert_out": Place("backward", "remembered", 1),
    "regime_two: r number of units": Place("backward", "r", 0),
    "regime_two: K1 noise router": Place("backward", "Seen(noise)", 0),
    "regime_two: K1 noise expert_in": Place("backward", "Seen(noise)", 1),
    "regime_two: D response router": Place("backward", "Seen(memory)", 0),
    "regime_two: D response expert_in": Place("backward", "Seen(memory)", 1),
    "regime_two: D learned router": Place("backward", "Seen(memory)", 2),
    "regime_two: D learned expert_in": Place("backward", "Seen(memory)", 3),
    "regime_three: psi noise router": Place("forward", "drawn", 0),
    "regime_three: psi response router": Place("forward", "remembered", 0),
    "regime_three: psi learned router": Place("forward", "remembered", 1),
    "regime_three: chi noise expert_in": Place("forward", "drawn", 1),
    "regime_three: chi response expert_in": Place("forward", "remembered", 2),
    "regime_three: h2 learned expert_in": Place("forward", "remembered", 3),
    "regime_three: K3 noise expert_out": Place("forward", "Seen(noise)", 0),
    "regime_three: M3 response expert_out": Place("forward", "Seen(memory)", 0),
    "regime_three: M3 learned expert_out": Place("forward", "Seen(memory)", 1),
    "regime_three: zeta noise expert_out": Place("backward", "drawn", 0),
    "regime_three: zeta response expert_out": Place("backward", "remembered", 0),
    "regime_three: z learned expert_out": Place("backward", "remembered", 1),
    "regime_three: r number of units": Place("backward", "r", 0),
    "regime_three: K1 noise expert_in": Place("backward", "Seen(noise)", 0),
    "regime_three: K1 noise router": Place("backward", "Seen(noise)", 1),
    "regime_three: D response expert_in": Place("backward", "Seen(memory)", 0),
    "regime_three: D response router": Place("backward", "Seen(memory)", 1),
    "regime_three: D learned expert_in": Place("backward", "Seen(memory)", 2),
    "regime_three: D learned router": Place("backward", "Seen(memory)", 3),
    "features: h1 noise embedding": Place("__init__", "extended", 0),
    "features: h1 learned embedding": Place("backward", "step", 0),
    "features: z1 noise": Place("backward", "drawn", 0),
    "features: z1 memory": Place("backward", "remembered", 0),
    "readout: v learned readout": Place("step", "moved", 0),
}
# Variables that hold a term, or a factor of one.
_HOLDING = ("initial", "scale", "step", "moved")


def site_of(name: str) -> str:
    return name.partition(": ")[0]


def regimes_of(name: str) -> tuple[str, ...]:
    """The regimes whose solutions the term is in."""
    return REGIMES.get(site_of(name), ("I", "II", "III"))


def found(site: str) -> dict[Place, str]:
    """All terms that the source of a site holds, named or not, with their text."""
    return {place: ast.unparse(term) for place, term in _terms(_tree(SITES[site]))}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The solver with the named term doubled."""
    site, place = SITES[site_of(name)], TERMS[name]
    tree = _tree(site)
    doubled = _Doubling(dict(_terms(tree))[place]).visit(tree)
    names = dict(vars(sys.modules[site.__module__]))
    exec(compile(f"from __future__ import annotations\n{ast.unparse(doubled)}", f"<{name}>", "exec"), names)
    right = vars(site)[place.method]
    # The method in the class, not the class: whoever builds the site, from wherever, gets the mistake.
    setattr(site, place.method, vars(names[site.__name__])[place.method])
    try:
        yield
    finally:
        setattr(site, place.method, right)


def _tree(site: type) -> ast.ClassDef:
    (tree,) = ast.parse(inspect.getsource(site)).body
    assert isinstance(tree, ast.ClassDef)
    return tree


def _terms(site: ast.ClassDef) -> Iterator[tuple[Place, ast.expr]]:
    for method in site.body:
        if isinstance(method, ast.FunctionDef):
            before: Counter[str] = Counter()
            for feeds, term in _fed(method):
                yield Place(method.name, feeds, before[feeds]), term
                before[feeds] += 1


def _fed(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Terms with what they feed, in the order of the source."""
    match node:
        case ast.Call(func=ast.Attribute(attr="drawn" | "extended" as feeds), args=[covariance]):
            yield feeds, covariance
        case ast.Call(func=ast.Attribute(attr="remembered"), args=[memory]):
            yield from (("remembered", term) for term in _summands(memory))
        case ast.Call(func=ast.Name("Seen"), keywords=keywords):
            for keyword in keywords:
                yield from ((f"Seen({keyword.arg})", term) for term in _summands(keyword.value))
        case ast.Assign(targets=[ast.Name("r")], value=ast.BinOp(right=units)):
            yield "r", units  # the number of units that pull at a gate
        case ast.Assign(targets=[ast.Name(variable)], value=value) if variable in _HOLDING:
            yield variable, value
        case ast.AnnAssign(target=ast.Name(variable), value=ast.expr() as value) if variable in _HOLDING:
            yield variable, value
    for child in ast.iter_child_nodes(node):
        yield from _fed(child)


def _summands(expression: ast.expr) -> Iterator[ast.expr]:
    match expression:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _summands(left)
            yield from _summands(right)
        case ast.BinOp(left=left, op=ast.Div()):
            yield from _summands(left)
        case _:
            yield expression


class _Doubling(ast.NodeTransformer):
    def __init__(self, term: ast.expr) -> None:
        self._term = term

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self._term:
            assert isinstance(node, ast.expr)
            return ast.BinOp(ast.Constant(2.0), ast.Mult(), node)
        visited: ast.AST = super().visit(node)
        return visited
