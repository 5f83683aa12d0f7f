"""The scaling rules: the paper's tables, with every value written as a power of the model's dimensions (``Power``).

"The paper" is *How to Scale Mixture-of-Experts: From muP to the Maximally Scale-Stable Parameterization* (2026).
``TABLE_1`` transcribes its Table 1 as printed. ``DERIVED`` adds the roles that Table 1 leaves out. Where a printed
value contradicts the paper's own desiderata, ``corrected_sgd_lr`` has the consistent one (``docs/errata.md`` has the
evidence). Plans use the corrected value unless ``as_printed=True``. Change a cell here, and every plan, command,
document and check follows. ``setting.py`` says which scheme reads which rows.

A row has one cell for each regime: I grows N, N_e; II grows N, M, K; III grows N, N_e, M, K. A fourth cell, which is
derived and measured here (``docs/growth.md``), is for any other growth. It separates what is summed, K terms with
aggregation 1/K, from what shares the tokens, of which an expert sees K/M. SGD's rates of experts and routers have none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeVar

from mssp.planning.power import Factor, Least, Power

ROLES = (
    "embedding", "norm", "qk_norm", "hidden", "bias", "router", "router_bias", "expert_in", "expert_in_bias",
    "expert_out", "expert_out_bias", "shared_gate", "final_norm", "readout",
)  # fmt: skip
# Parts of what is "hidden" follow its rule. Tuned multipliers and standard deviations may name them.
PARTS = ("attention_in", "attention_out", "ffn_in", "ffn_out")
# Roles that few models have: the numbers of a plan list them for no model, and a model's own table has them.
RARE_ROLES = ("readout_bias",)
GAINS = frozenset({"norm", "qk_norm", "final_norm"})
BIASES = frozenset({"bias", "router_bias", "expert_in_bias", "expert_out_bias", "readout_bias"})
OUTSIDE_BLOCKS = frozenset({"embedding", "final_norm", "readout", "readout_bias"})
Source = Literal["table", "erratum", "derived"]
_PRINTED = 3  # the paper prints so many cells of a row

one = Power()
half = Fraction(1, 2)
N, N_e, M, K, L, D = (Power(**{symbol: 1}) for symbol in ("N", "N_e", "M", "K", "L", "D"))
fan_in, fan_out = Power(fan_in=1), Power(fan_out=1)


Cell = TypeVar("Cell")
Row = tuple[Cell, ...]  # a cell for each regime, in the order I, II, III, and one for any other growth


@dataclass(frozen=True)
class Init:
    """How weights start.

    Args:
        std: the standard deviation; for gains, the constant they start at; None for zeros.
        shared: the part of an expert's initial output that all experts share: 0 for independent experts, 1 for tied
            ones. None: what the growth asks for (``growth.py``).
    """

    std: Factor | None
    shared: float | None = 0.0


@dataclass(frozen=True)
class ByScheme:
    """A cell that the paper prints as "muP | MSSP"."""

    mup: Init
    mssp: Init


ZERO = Init(None)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of one role. An optimizer whose row is missing leaves the role to its ``rest``."""

    init: Row[Init | ByScheme]
    eps: Row[Power]
    sgd: Row[Power] | None = None
    adam: Row[Power] | None = None

    def lr(self, row: str) -> Row[Power] | None:
        """The row of this name, which is one of learning rates."""
        rates: Row[Power] | None = getattr(self, row)
        return rates


def std(factor: Factor) -> Init:
    """Independent weights of this standard deviation."""
    return Init(factor)


def tied(factor: Factor) -> Init:
    """Weights of this standard deviation that are the same in all experts."""
    return Init(factor, shared=1.0)


def partly_tied(factor: Factor) -> Init:
    """Weights of this standard deviation, of which experts share as much as the growth asks for."""
    return Init(factor, shared=None)


def for_all(cell: Cell) -> tuple[Cell, Cell, Cell, Cell]:
    """A row with the same cell for all regimes and any other growth."""
    return (cell, cell, cell, cell)


# In the last cells of the rows below. A minimum is one of growths, from the base to the target.
# The sum over K experts is an average of independent terms. More of them, K ~ k, need a larger start to add up to what
# they were, unless one expert's output, of N_e of N terms, would then send back too much.
boost = Least(K**half, (N / N_e) ** half)
# What a router adds to the way back grows with N, and is an average over the K experts that it weighs.
router_start = N**-half * Least(one, (K / N) ** half)


TABLE_1: dict[str, Rows] = {
    "embedding": Rows(init=for_all(std(fan_in**-half)), sgd=for_all(N), adam=for_all(1 / fan_in), eps=for_all(1 / N)),
    "norm": Rows(init=for_all(std(one)), sgd=for_all(N), adam=for_all(one), eps=for_all(1 / (N * L))),
    # The paper prints this row for N x N matrices. Writing it in fan_in and fan_out extends it to matrices that are not
    # square, such as those of an FFN, or of attention with fewer key heads.
    "hidden": Rows(
        init=for_all(std(fan_in**-half)),
        sgd=for_all(fan_out / fan_in),
        adam=for_all(1 / fan_in),
        eps=for_all(1 / (N * L)),
    ),
    "bias": Rows(init=for_all(ZERO), sgd=for_all(one), adam=for_all(one), eps=for_all(1 / (N * L))),
    "router": Rows(
        init=(ByScheme(mup=std(1 / N), mssp=ZERO), std(N**-half), std(N**-half), std(router_start)),
        sgd=(1 / N, M / N, one),
        adam=(1 / N, 1 / N, 1 / N, 1 / N),
        eps=(1 / L, 1 / (M * L), 1 / (M * L), 1 / (M * L)),
    ),
    "expert_in": Rows(
        init=(
            std(N**-half),
            std(N**-half),
            ByScheme(mup=std(N**-half), mssp=tied(N**-half)),
            ByScheme(mup=std(N**-half), mssp=partly_tied(N**-half)),
        ),
        sgd=(one, M / N, M),
        adam=(1 / N, 1 / N, 1 / N, 1 / N),
        eps=(1 / (N * L), 1 / (M * L), 1 / (M * N * L), 1 / (M * N_e * L)),
    ),
    "expert_out": Rows(
        init=(
            std(N_e**-half),
            ByScheme(mup=std(N_e**-half), mssp=std(M**half * N_e**-half)),
            ByScheme(mup=std(N_e**-half), mssp=tied(N_e**-half)),
            ByScheme(mup=std(N_e**-half), mssp=partly_tied(boost * N_e**-half)),
        ),
        sgd=(one, M * N, M),
        adam=(1 / N_e, 1 / N_e, 1 / N_e, 1 / N_e),
        eps=(1 / (N * L), 1 / (M * N * L), 1 / (M * N * L), 1 / (M * N * L)),
    ),
    "final_norm": Rows(init=for_all(std(one)), sgd=for_all(N), adam=for_all(one), eps=for_all(1 / N)),
    "readout": Rows(init=for_all(std(1 / N)), sgd=for_all(1 / N), adam=for_all(1 / N), eps=for_all(one)),
}

# What Table 1 leaves out follows from the size of a parameter's gradient. Adam's eps has that size. SGD's lr is Adam's
# lr divided by it, without the factor L, which ``corrected_sgd_lr`` adds.
DERIVED: dict[str, Rows] = {
    # A gain of size d_head is shared by all N / d_head heads: its gradient is a mean over width, of order 1.
    "qk_norm": Rows(init=for_all(std(one)), sgd=for_all(one), adam=for_all(one), eps=for_all(1 / L)),
    "router_bias": Rows(
        init=for_all(ZERO),
        sgd=(one, M, M),
        adam=for_all(one),
        eps=(1 / L, 1 / (M * L), 1 / (M * L), 1 / (M * L)),
    ),
    "expert_in_bias": Rows(
        init=for_all(ZERO),
        sgd=(N, M, M * N),
        adam=for_all(one),
        eps=(1 / (N * L), 1 / (M * L), 1 / (M * N * L), 1 / (M * N_e * L)),
    ),
    "expert_out_bias": Rows(
        init=for_all(ZERO),
        sgd=(N, M * N, M * N),
        adam=for_all(one),
        eps=(1 / (N * L), 1 / (M * N * L), 1 / (M * N * L), 1 / (M * N * L)),
    ),
    # The gate of a shared expert maps N inputs to one output, and a layer has one such gate. It follows the router of
    # Regime I, whose number of outputs is fixed too.
    "shared_gate": Rows(
        init=for_all(ByScheme(mup=std(1 / N), mssp=ZERO)),
        sgd=for_all(1 / N),
        adam=for_all(1 / N),
        eps=for_all(1 / L),
    ),
    # A bias of the logits has the vocabulary's size, which does not grow: its gradient is the mean error of a logit.
    "readout_bias": Rows(init=for_all(ZERO), sgd=for_all(one), adam=for_all(one), eps=for_all(one)),
}

# The sides of a role's matrix, for roles whose sides follow from the model's dimensions. A bias or a gain has an output
# side alone. Rules may be written in these sides, and a model whose parameters have other sizes is refused.
FAN_IN: dict[str, Power] = {
    "embedding": D, "hidden": N, "router": N, "expert_in": N, "expert_out": N_e, "shared_gate": N, "readout": N,
}  # fmt: skip
FAN_OUT: dict[str, Power] = {
    "embedding": N, "hidden": N, "router": M, "router_bias": M, "expert_in": N_e, "expert_in_bias": N_e,
    "expert_out": N, "expert_out_bias": N, "final_norm": N,
}  # fmt: skip


# -- where schemes take their rows from --------------------------------------------------------------------------------


def printed(variant: str) -> Callable[[str], Rows]:
    """The rows of TABLE_1 and DERIVED. Of cells printed as "muP | MSSP" they have one variant, ``mup`` or ``mssp``."""

    def rows(role: str) -> Rows:
        both_variants = TABLE_1.get(role) or DERIVED[role]
        init = tuple(getattr(cell, variant) if isinstance(cell, ByScheme) else cell for cell in both_variants.init)
        return replace(both_variants, init=init)

    return rows


def with_small_router_and_one_eps(rows: Callable[[str], Rows]) -> Callable[[str], Rows]:
    """The rows of another scheme, changed to start the router with std 1/N and to have one eps for all roles."""

    def changed(role: str) -> Rows:
        init = for_all(std(1 / N)) if role == "router" else rows(role).init
        return replace(rows(role), init=init, eps=for_all(one))

    return changed


# In Regimes I, II and III, the role whose output side is fixed while its input side grows, as a readout's does, and the
# role whose input side is fixed while its output side grows, as an embedding's does. None: no role does.
_READOUT_LIKE = ("router", "expert_in", None)
_EMBEDDING_LIKE = (None, "expert_out", None)


def by_shape(role: str) -> Rows:
    """muP by which sides of a matrix grow, and nothing else (the paper's table of the muP heuristic)."""
    cells = [_heuristic(role, *roles) for roles in zip(_READOUT_LIKE, _EMBEDDING_LIKE, strict=True)]
    init, sgd, adam, eps = zip(*cells, strict=True)
    return Rows(init=init, sgd=sgd, adam=adam, eps=eps)


def _heuristic(role: str, readout_like: str | None, embedding_like: str | None) -> tuple[Init, Power, Power, Power]:
    is_vector = role in GAINS | BIASES
    if role == "readout_bias":
        weight_std, lr_sgd, lr_adam, eps = one, one, one, one
    elif role in ("readout", "shared_gate", readout_like):
        weight_std, lr_sgd, lr_adam, eps = 1 / N, 1 / N, 1 / N, one
    elif is_vector or role in ("embedding", embedding_like):
        weight_std, lr_sgd, lr_adam, eps = fan_in**-half, N, 1 / fan_in, 1 / N
    else:
        weight_std, lr_sgd, lr_adam, eps = fan_in**-half, one, 1 / fan_in, 1 / N
    lr_adam = one if is_vector else lr_adam
    eps = eps if role in OUTSIDE_BLOCKS else eps / L
    return _init_of(role, weight_std), lr_sgd, lr_adam, eps


def regime_free(lr: Power) -> Callable[[str], Rows]:
    """One learning rate of weights, whatever grows (the paper's table of abc-parameterizations).

    The paper prints none for gains and biases: theirs is 1.
    """

    def rows(role: str) -> Rows:
        lrs = for_all(one if role in GAINS | BIASES else lr)
        return Rows(init=for_all(_init_of(role, fan_in**-half)), sgd=lrs, adam=lrs, eps=for_all(one))

    return rows


def _init_of(role: str, weight_std: Power) -> Init:
    """How a role starts: gains at 1 and biases at 0 in every scheme, weights with ``weight_std``."""
    return std(one) if role in GAINS else ZERO if role in BIASES else std(weight_std)


# What moves a router whose gates sum to one, among experts that start alike, is how their outputs differ from the mean.
# Its gradient then falls faster with the width than where every gate weighs an output of its own.
router_eps_of_shares = N**-half / (M * L)


def source_of(role: str, column: int) -> Source:
    """Where a cell is from: the fourth cells of rows that differ from regime to regime are derived."""
    is_printed = role in TABLE_1 and (column < _PRINTED or len(set(TABLE_1[role].eps)) == 1)
    return "table" if is_printed else "derived"


# -- errata ------------------------------------------------------------------------------------------------------------


def corrected_sgd_lr(role: str, lr: Power, as_printed: bool, column: int) -> tuple[Power, Source]:
    """SGD's learning rate in one column of the tables, with the two errata of SGD's rows unless ``as_printed``.

    Under the 1/L residual multiplier, gradients inside a block are of order 1/L (the eps rows say so), so SGD needs
    lr x L there. A hidden bias has a gradient of order 1/N, like the gain beside it, so its lr is N.
    """
    source = source_of(role, column)
    if as_printed:
        row = TABLE_1["bias"].sgd
        # The paper prints one row for hidden biases, and so for all schemes.
        return (row[column] if role == "bias" and row is not None else lr), source
    if role in OUTSIDE_BLOCKS:
        return lr, source
    return (N if role == "bias" else lr) * L, "derived" if source == "derived" else "erratum"


# -- a rule ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """The cells of one role in one setting.

    ``init_std`` is a standard deviation; for gains it is the constant they start at; None means all zeros. ``eps`` is
    None for SGD. ``shared`` is the part of an expert's initial output that all experts share: 0 for independent
    experts, 1 for tied ones, None for as much as the growth asks for.
    """

    role: str
    init_std: Factor | None
    lr: Power
    eps: Power | None
    shared: float | None
    source: Source

    @property
    def zero(self) -> bool:
        return self.init_std is None

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols of all dimensions that occur in this rule."""
        factors = (self.init_std, self.lr, self.eps)
        return frozenset().union(*(factor.symbols for factor in factors if factor is not None))

    def without_depth(self) -> Rule:
        """This rule where residual branches have the factor 1: with 1/L their gradients would fall with depth."""
        of_any_depth = {"L": one}
        eps = None if self.eps is None else self.eps.substitute(of_any_depth)
        return replace(self, lr=self.lr.substitute(of_any_depth), eps=eps)

    def in_model_symbols(self, factor: Factor) -> Factor:
        """A factor of this rule with ``fan_in`` and ``fan_out`` written in the model's symbols."""
        return factor.substitute({"fan_in": FAN_IN.get(self.role, one), "fan_out": FAN_OUT.get(self.role, one)})
