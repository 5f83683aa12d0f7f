"""The prescription: the paper's tables, written in Powers and nothing else.

"The paper" is *How to Scale Mixture-of-Experts: From muP to the Maximally Scale-Stable Parameterization* (2026).
``TABLE_1`` transcribes its Table 1 as printed. ``DERIVED`` adds the roles that Table 1 leaves out. Where a printed
value contradicts the paper's own desiderata, ``corrected`` has the consistent one (``docs/errata.md`` has the
evidence), and plans use it unless they are asked for the table ``as_printed``. Change a cell here, and every plan,
command, document and check follows. ``setting.py`` says which scheme reads which rows, and which cell belongs to which
regime.

The columns are the regimes: I grows N, N_e; II grows N, M, K; III grows N, N_e, M, K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeVar

from mssp.planning.power import Factor, Power

ROLES = (
    "embedding", "norm", "qk_norm", "hidden", "bias", "router", "router_bias", "expert_in", "expert_in_bias",
    "expert_out", "expert_out_bias", "shared_gate", "final_norm", "readout",
)  # fmt: skip
GAINS = frozenset({"norm", "qk_norm", "final_norm"})
BIASES = frozenset({"bias", "router_bias", "expert_in_bias", "expert_out_bias"})
OUTSIDE_BLOCKS = frozenset({"embedding", "final_norm", "readout"})
Source = Literal["table", "erratum", "derived"]

one = Power()
half = Fraction(1, 2)
N, N_e, M, L, D = Power(N=1), Power(N_e=1), Power(M=1), Power(L=1), Power(D=1)
fan_in, fan_out = Power(fan_in=1), Power(fan_out=1)


Cell = TypeVar("Cell")
Row = tuple[Cell, ...]  # a cell for each regime


@dataclass(frozen=True)
class Init:
    """An initial standard deviation. ``std`` None means zeros; ``shared`` 1 means one draw for all experts."""

    std: Factor | None
    shared: float = 0.0


@dataclass(frozen=True)
class ByScheme:
    """A cell that the paper prints as "muP | MSSP"."""

    mup: Init
    mssp: Init


ZERO = Init(None)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of one role. A missing row of learning rates leaves the role to another optimizer."""

    init: Row[Init | ByScheme]
    eps: Row[Factor]
    sgd: Row[Factor] | None = None
    adam: Row[Factor] | None = None

    def lr(self, row: str) -> Row[Factor] | None:
        """The learning rates by the name of their row."""
        rates: Row[Factor] | None = getattr(self, row)
        return rates


std = Init  # so that a cell reads as in the paper


def tied(power: Power) -> Init:
    return Init(power, shared=1.0)


def same(cell: Cell) -> tuple[Cell, Cell, Cell]:
    return (cell, cell, cell)


TABLE_1: dict[str, Rows] = {
    "embedding": Rows(init=same(std(fan_in**-half)), sgd=same(N), adam=same(1 / fan_in), eps=same(1 / N)),
    "norm": Rows(init=same(std(one)), sgd=same(N), adam=same(one), eps=same(1 / (N * L))),
    # Printed for N x N matrices; fan_in and fan_out say the same for the others (attention with fewer key heads, FFN).
    "hidden": Rows(
        init=same(std(fan_in**-half)),
        sgd=same(fan_out / fan_in),
        adam=same(1 / fan_in),
        eps=same(1 / (N * L)),
    ),
    "bias": Rows(init=same(ZERO), sgd=same(one), adam=same(one), eps=same(1 / (N * L))),
    "router": Rows(
        init=(ByScheme(mup=std(1 / N), mssp=ZERO), std(N**-half), std(N**-half)),
        sgd=(1 / N, M / N, one),
        adam=(1 / N, 1 / N, 1 / N),
        eps=(1 / L, 1 / (M * L), 1 / (M * L)),
    ),
    "expert_in": Rows(
        init=(std(N**-half), std(N**-half), ByScheme(mup=std(N**-half), mssp=tied(N**-half))),
        sgd=(one, M / N, M),
        adam=(1 / N, 1 / N, 1 / N),
        eps=(1 / (N * L), 1 / (M * L), 1 / (M * N * L)),
    ),
    "expert_out": Rows(
        init=(
            std(N_e**-half),
            ByScheme(mup=std(N_e**-half), mssp=std(M**half * N_e**-half)),
            ByScheme(mup=std(N_e**-half), mssp=tied(N_e**-half)),
        ),
        sgd=(one, M * N, M),
        adam=(1 / N_e, 1 / N_e, 1 / N_e),
        eps=(1 / (N * L), 1 / (M * N * L), 1 / (M * N * L)),
    ),
    "final_norm": Rows(init=same(std(one)), sgd=same(N), adam=same(one), eps=same(1 / N)),
    "readout": Rows(init=same(std(1 / N)), sgd=same(1 / N), adam=same(1 / N), eps=same(one)),
}

# What Table 1 leaves out follows from the size of a parameter's gradient: that is Adam's eps, and SGD's lr its inverse.
DERIVED: dict[str, Rows] = {
    # A gain of size d_head is shared by all N / d_head heads: its gradient is a mean over width, of order 1.
    "qk_norm": Rows(init=same(std(one)), sgd=same(one), adam=same(one), eps=same(1 / L)),
    "router_bias": Rows(
        init=same(ZERO),
        sgd=(one, M, M),
        adam=same(one),
        eps=(1 / L, 1 / (M * L), 1 / (M * L)),
    ),
    "expert_in_bias": Rows(
        init=same(ZERO),
        sgd=(N, M, M * N),
        adam=same(one),
        eps=(1 / (N * L), 1 / (M * L), 1 / (M * N * L)),
    ),
    "expert_out_bias": Rows(
        init=same(ZERO),
        sgd=(N, M * N, M * N),
        adam=same(one),
        eps=(1 / (N * L), 1 / (M * N * L), 1 / (M * N * L)),
    ),
    # N -> 1, one per layer, as the router is in Regime I.
    "shared_gate": Rows(
        init=same(ByScheme(mup=std(1 / N), mssp=ZERO)),
        sgd=same(1 / N),
        adam=same(1 / N),
        eps=same(1 / L),
    ),
}

# The two sides of a role's matrix, for roles that decide them. Rules may use them, and models must fit them.
FAN_IN: dict[str, Power] = {
    "embedding": D, "hidden": N, "router": N, "expert_in": N, "expert_out": N_e, "shared_gate": N, "readout": N,
}  # fmt: skip
FAN_OUT: dict[str, Power] = {
    "embedding": N, "hidden": N, "router": M, "router_bias": M, "expert_in": N_e, "expert_in_bias": N_e,
    "expert_out": N, "expert_out_bias": N, "final_norm": N,
}  # fmt: skip


# -- where schemes take their rows from --------------------------------------------------------------------------------


def printed(side: str) -> Callable[[str], Rows]:
    """The rows of TABLE_1 and DERIVED, with the cells of one side (``mup`` or ``mssp``) where there are two."""

    def rows(role: str) -> Rows:
        both_sides = TABLE_1.get(role) or DERIVED[role]
        init = tuple(getattr(cell, side) if isinstance(cell, ByScheme) else cell for cell in both_sides.init)
        return replace(both_sides, init=init)

    return rows


def smaller_router(rows: Callable[[str], Rows]) -> Callable[[str], Rows]:
    """These rows, but with a router of std 1/N and one global eps."""

    def changed(role: str) -> Rows:
        init = same(std(1 / N)) if role == "router" else rows(role).init
        return replace(rows(role), init=init, eps=same(one))

    return changed


# In Regimes I, II and III: weights whose output side alone is fixed, and those whose input side alone is.
_OUTPUT_LIKE = ("router", "expert_in", "")
_INPUT_LIKE = ("", "expert_out", "")


def by_shape(role: str) -> Rows:
    """muP by which sides of a matrix grow, and nothing else (the paper's table of the muP heuristic)."""
    cells = [_heuristic(role, *likes) for likes in zip(_OUTPUT_LIKE, _INPUT_LIKE, strict=True)]
    init, sgd, adam, eps = zip(*cells, strict=True)
    return Rows(init=init, sgd=sgd, adam=adam, eps=eps)


def _heuristic(role: str, output_like: str, input_like: str) -> tuple[Init, Power, Power, Power]:
    if role in ("readout", "shared_gate", output_like):
        init, lr_sgd, lr_adam, eps = 1 / N, 1 / N, 1 / N, one
    elif role in {"embedding", input_like} | GAINS | BIASES:
        init, lr_sgd, lr_adam, eps = fan_in**-half, N, one if role in GAINS | BIASES else 1 / fan_in, 1 / N
    else:
        init, lr_sgd, lr_adam, eps = fan_in**-half, one, 1 / fan_in, 1 / N
    return _start(role, init), lr_sgd, lr_adam, eps if role in OUTSIDE_BLOCKS else eps / L


def flat(lr: Power) -> Callable[[str], Rows]:
    """One recipe whatever grows (the paper's table of abc-parameterizations), with 1 for gains and biases."""

    def rows(role: str) -> Rows:
        lrs = same(one if role in GAINS | BIASES else lr)
        return Rows(init=same(_start(role, fan_in**-half)), sgd=lrs, adam=lrs, eps=same(one))

    return rows


def _start(role: str, weight_std: Power) -> Init:
    """Gains start at 1 and biases at 0 in every scheme; the std is for weights."""
    return std(one) if role in GAINS else ZERO if role in BIASES else std(weight_std)


def source_of(role: str) -> Source:
    return "table" if role in TABLE_1 else "derived"


# -- errata ------------------------------------------------------------------------------------------------------------


def corrected(role: str, lr: Factor, as_printed: bool, cell: int) -> tuple[Factor, Source]:
    """A learning rate of SGD with the two errata of these rows.

    Under the 1/L residual multiplier, gradients inside a block are of order 1/L (the eps rows say so), so SGD needs
    lr x L there. A hidden bias has a gradient of order 1/N, like the gain beside it, so its lr is N.
    """
    source = source_of(role)
    if as_printed:
        row = TABLE_1["bias"].sgd
        return (row[cell] if role == "bias" and row is not None else lr), source  # whatever the scheme
    if role in OUTSIDE_BLOCKS:
        return lr, source
    return (N if role == "bias" else lr) * L, "derived" if source == "derived" else "erratum"


# -- a rule ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What one role gets. ``init_std`` None means zeros (gains: the value they start from); ``eps`` None means SGD.

    ``shared`` is the part of their start that all experts have in common: 0 for experts of their own, 1 for tied ones.
    """

    role: str
    init_std: Factor | None
    lr: Factor
    eps: Factor | None
    shared: float
    source: Source

    @property
    def zero(self) -> bool:
        return self.init_std is None

    @property
    def symbols(self) -> frozenset[str]:
        """Every dimension this rule speaks of."""
        factors = (self.init_std, self.lr, self.eps)
        return frozenset().union(*(factor.symbols for factor in factors if factor is not None))

    def by_shape(self, factor: Factor) -> Factor:
        """A factor of this rule with ``fan_in`` and ``fan_out`` written in the model's symbols."""
        return factor.substitute({"fan_in": FAN_IN.get(self.role, one), "fan_out": FAN_OUT.get(self.role, one)})
