"""The prescription: the paper's tables, written in Powers and nothing else.

"The paper" is *How to Scale Mixture-of-Experts: From muP to the Maximally Scale-Stable Parameterization* (2026).
``TABLE_1`` transcribes its Table 1 as printed. ``DERIVED`` adds the roles Table 1 leaves out. Where the printed value
contradicts the paper's own desiderata, ``rule`` corrects it (``docs/errata.md`` has the evidence) unless it is asked
for the table ``as_printed``. Change a cell here and every plan, command, document and check follows.

The columns are the regimes: I grows N, N_e; II grows N, M, K; III grows N, N_e, M, K.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Literal, TypeVar

from mssp.planning.power import Power

ROLES = (
    "embedding", "norm", "qk_norm", "hidden", "bias", "router", "router_bias", "expert_in", "expert_in_bias",
    "expert_out", "expert_out_bias", "shared_gate", "final_norm", "readout",
)  # fmt: skip
GAINS = frozenset({"norm", "qk_norm", "final_norm"})
BIASES = frozenset({"bias", "router_bias", "expert_in_bias", "expert_out_bias"})
OUTSIDE_BLOCKS = frozenset({"embedding", "final_norm", "readout"})
REGIMES = ("I", "II", "III")
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEMES = ("mssp", "mup", "mup-heuristic", "sp", "ntp", "jiang")
# These two scale nothing by the regime: one recipe, no aggregation factor, no residual multiplier.
REGIME_FREE = frozenset({"sp", "ntp"})

Source = Literal["table", "erratum", "derived"]

one = Power()
half = Fraction(1, 2)
N, N_e, M, L, D = Power(N=1), Power(N_e=1), Power(M=1), Power(L=1), Power(D=1)
fan_in, fan_out = Power(fan_in=1), Power(fan_out=1)


@dataclass(frozen=True)
class Init:
    """An initial standard deviation; ``std`` None means zeros, ``tied`` one draw shared by all experts."""

    std: Power | None
    tied: bool = False


@dataclass(frozen=True)
class Differ:
    """A cell the paper prints as "muP | MSSP"."""

    mup: Init
    mssp: Init


ZERO = Init(None)
Three = tuple[Power, Power, Power]
Cell = TypeVar("Cell")


@dataclass(frozen=True)
class Rows:
    """The rows of one role; each row holds its cells for Regimes I, II and III."""

    init: tuple[Init | Differ, Init | Differ, Init | Differ]
    sgd: Three
    adam: Three
    eps: Three


std = Init  # so that a cell reads as in the paper


def tied(power: Power) -> Init:
    return Init(power, tied=True)


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
        init=(Differ(mup=std(1 / N), mssp=ZERO), std(N**-half), std(N**-half)),
        sgd=(1 / N, M / N, one),
        adam=(1 / N, 1 / N, 1 / N),
        eps=(1 / L, 1 / (M * L), 1 / (M * L)),
    ),
    "expert_in": Rows(
        init=(std(N**-half), std(N**-half), Differ(mup=std(N**-half), mssp=tied(N**-half))),
        sgd=(one, M / N, M),
        adam=(1 / N, 1 / N, 1 / N),
        eps=(1 / (N * L), 1 / (M * L), 1 / (M * N * L)),
    ),
    "expert_out": Rows(
        init=(
            std(N_e**-half),
            Differ(mup=std(N_e**-half), mssp=std(M**half * N_e**-half)),
            Differ(mup=std(N_e**-half), mssp=tied(N_e**-half)),
        ),
        sgd=(one, M * N, M),
        adam=(1 / N_e, 1 / N_e, 1 / N_e),
        eps=(1 / (N * L), 1 / (M * N * L), 1 / (M * N * L)),
    ),
    "final_norm": Rows(init=same(std(one)), sgd=same(N), adam=same(one), eps=same(1 / N)),
    "readout": Rows(init=same(std(1 / N)), sgd=same(1 / N), adam=same(1 / N), eps=same(one)),
}

# What Table 1 leaves out, from the gradient scale of each parameter: Adam's eps is that scale, SGD's lr its inverse.
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
    # N -> 1, one per layer: what the router is in Regime I.
    "shared_gate": Rows(
        init=same(Differ(mup=std(1 / N), mssp=ZERO)),
        sgd=same(1 / N),
        adam=same(1 / N),
        eps=same(1 / L),
    ),
}

# The two sides of each role's matrix, where the role decides them: rules may speak of them, and models must fit.
FAN_IN: dict[str, Power] = {
    "embedding": D, "hidden": N, "router": N, "expert_in": N, "expert_out": N_e, "shared_gate": N, "readout": N,
}  # fmt: skip
FAN_OUT: dict[str, Power] = {
    "embedding": N, "hidden": N, "router": M, "router_bias": M, "expert_in": N_e, "expert_in_bias": N_e,
    "expert_out": N, "expert_out_bias": N, "final_norm": N,
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """What one role gets. ``init_std`` None means zeros (gains: the value they start from); ``eps`` None means SGD."""

    role: str
    init_std: Power | None
    lr: Power
    eps: Power | None
    tied: bool
    source: Source

    @property
    def zero(self) -> bool:
        return self.init_std is None

    @property
    def symbols(self) -> set[str]:
        """Every dimension this rule speaks of."""
        return {symbol for power in (self.init_std, self.lr, self.eps) if power is not None for symbol in power}

    def by_shape(self, power: Power) -> Power:
        """A Power of this rule with ``fan_in`` and ``fan_out`` written in the model's symbols."""
        return power.substitute({"fan_in": FAN_IN.get(self.role, one), "fan_out": FAN_OUT.get(self.role, one)})


@cache  # a search over thousands of plans asks for the same few
def rule(role: str, scheme: str, regime: str | None, optimizer: str, as_printed: bool = False) -> Rule:
    """The rule for one role.

    >>> rule("expert_out", "mssp", "II", "adam").init_std
    Power('M¹ᐟ²N_e⁻¹ᐟ²')
    """
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}: use one of {', '.join(ROLES)}")
    check_names(scheme, optimizer, regime)
    check_cell(scheme, regime, optimizer)
    sgd = optimizer == "sgd"
    if scheme in REGIME_FREE:
        found = _regime_free(role, scheme)
    else:
        assert regime is not None
        heuristic = scheme == "mup-heuristic"
        found = _heuristic(role, regime, sgd) if heuristic else _tabulated(role, scheme, regime, sgd)
        if sgd and not as_printed:
            found = _corrected(found)
        elif sgd and role == "bias":
            found = replace(found, lr=TABLE_1["bias"].sgd[REGIMES.index(regime)])  # whatever the scheme
    return replace(found, eps=None) if sgd else found


def check_names(scheme: str, optimizer: str, regime: str | None) -> None:
    """Refuse what is not one of ours."""
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}: use one of {', '.join(SCHEMES)}")
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"no rules for optimizer {optimizer!r}: the paper covers {', '.join(OPTIMIZERS)}")
    if regime not in (*REGIMES, None):
        raise ValueError(f"unknown regime {regime!r}: use one of {', '.join(REGIMES)}")


def check_cell(scheme: str, regime: str | None, optimizer: str) -> None:
    """Refuse the combinations that neither the paper nor the derived rules cover."""
    if regime is None and scheme not in REGIME_FREE:
        raise ValueError(f"scheme {scheme!r} needs a regime: use one of {', '.join(REGIMES)}")
    if scheme == "ntp" and optimizer != "sgd":
        raise ValueError(f"scheme 'ntp' is defined for sgd only, not {optimizer}")
    if scheme == "jiang" and (regime != "III" or optimizer == "sgd"):
        raise ValueError(f"scheme 'jiang' is defined for adam and adamw in regime III, not {optimizer} in {regime}")


def _tabulated(role: str, scheme: str, regime: str, sgd: bool) -> Rule:
    """A cell of TABLE_1 or DERIVED."""
    rows = TABLE_1.get(role) or DERIVED[role]
    column = REGIMES.index(regime)
    cell = rows.init[column]
    init = cell if isinstance(cell, Init) else cell.mssp if scheme == "mssp" else cell.mup
    lr, eps = (rows.sgd if sgd else rows.adam)[column], rows.eps[column]
    if scheme == "jiang":
        # Jiang et al. 2026 is muP with a smaller router and one global eps (the paper's related work).
        init, eps = (std(1 / N) if role == "router" else init), one
    return Rule(role, init.std, lr, eps, init.tied, _source(role))


def _corrected(printed: Rule) -> Rule:
    """The two errata of the SGD rows.

    Under the 1/L residual multiplier gradients inside a block are of order 1/L (the eps rows say so), so SGD needs
    lr x L there. A hidden bias has a gradient of order 1/N like the gain beside it, so its lr is N.
    """
    if printed.role in OUTSIDE_BLOCKS:
        return printed
    lr = L * (N if printed.role == "bias" else printed.lr)
    return replace(printed, lr=lr, source="derived" if printed.source == "derived" else "erratum")


def _heuristic(role: str, regime: str, sgd: bool) -> Rule:
    """muP by shape alone (the paper's table of the muP heuristic): by which sides of a matrix grow."""
    output_like = {"readout", "shared_gate", {"I": "router", "II": "expert_in", "III": ""}[regime]}
    input_like = {"embedding", "expert_out" if regime == "II" else ""} | GAINS | BIASES
    if role in output_like:
        init, lr_sgd, lr_adam, eps = 1 / N, 1 / N, 1 / N, one
    elif role in input_like:
        init, lr_sgd, lr_adam, eps = fan_in**-half, N, one if role in GAINS | BIASES else 1 / fan_in, 1 / N
    else:
        init, lr_sgd, lr_adam, eps = fan_in**-half, one, 1 / fan_in, 1 / N
    eps = eps if role in OUTSIDE_BLOCKS else eps / L
    return Rule(role, _start(role, init), lr_sgd if sgd else lr_adam, eps, False, _source(role))


def _regime_free(role: str, scheme: str) -> Rule:
    """Standard and neural-tangent parameterization (the paper's table of abc-parameterizations)."""
    lr = one if scheme == "sp" or role in GAINS | BIASES else 1 / fan_in
    return Rule(role, _start(role, fan_in**-half), lr, one, False, _source(role))


def _start(role: str, weight_std: Power) -> Power | None:
    """Gains start at 1 and biases at 0 in every scheme; the std is for weights."""
    return one if role in GAINS else None if role in BIASES else weight_std


def _source(role: str) -> Source:
    return "table" if role in TABLE_1 else "derived"
