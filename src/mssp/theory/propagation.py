"""The predicted exponents, as data: how every term of the dynamics scales with the width, step by step.

The tables are the paper's summaries of App. "Signal Propagation" and its text for Adam and for Regime I. "zero" is a
term that vanishes identically. Where the paper treats a cross term apart, our "effective" (ΔW x_t) contains it and is
of the larger order. What the rules imply (initial weights, learning rates, gradients) is read off the rules, not
written down again (``theory/implied.py``).

One printed value is corrected here (docs/errata.md): E.2 of muP after one step is N⁻³ in both regimes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from mssp.measure.quantities import (
    ACTIVATION,
    AGGREGATE,
    BACKWARD,
    BACKWARD_EFFECTIVE,
    BACKWARD_PROPAGATING,
    BY_UPDATE,
    EFFECTIVE,
    GRADIENT,
    INIT,
    LOGIT_CHANGE,
    PROPAGATING,
    THROUGH_ROUTER,
    TO_GATES,
    UPDATED,
    WAY_BACK,
    Quantity,
)
from mssp.planning.setting import ADAM, ANY, MSSP, MUP, MUPS_OWN, SGD, ZERO, I, Regime, Setting, regime_named

# MSSP from a zero readout, for SGD and Adam alike: the first update moves the readout alone, the second moves
# everything, and from then on nothing changes its order. "from" is the number of updates after which a term is there.
_MSSP = """
                                     from  I     II    III
    effective/embedding              2     0     0     0
    effective/router                 2     0     0     0
    effective/expert_in              2     0     0     0
    effective/expert_out             2     0     0     0
    effective/readout                1     0     0     0
    propagating/embedding            -     zero  zero  zero
    propagating/router               2     zero  0     0
    propagating/expert_in            2     0     0     0
    propagating/expert_out           2     0     1/2   0
    propagating/readout              -     zero  zero  zero
    aggregate/init                   0     0     0     0
    aggregate/propagating            2     0     0     0
    aggregate/A21                    2     0     0     0
    aggregate/A22                    2     0     0     0
    aggregate/effective              2     0     0     0
    aggregate/cross                  2     0     0     0
    activation/embedding             0     0     0     0
    activation/router                0     -     0     0
    activation/expert_in             0     0     0     0
    activation/expert_out            0     0     1/2   0
    activation/aggregate             0     0     0     0
    activation/readout               1     0     0     0
    features/delta                   2     0     0     0
    router/delta                     2     0     0     0
    backward/propagating/readout     -     zero  zero  zero
    backward/effective/readout       1     -1    -1    -1
    backward/propagating/expert_out  1     -1    -1    -2
    backward/effective/expert_out    2     -1    -1    -2
    backward/propagating/expert_in   1     -1    -3/2  -2
    backward/effective/expert_in     2     -1    -2    -2
    backward/propagating/router      1     zero  -1    -1
    backward/effective/router        2     -1    -1    -1
    backward/h2-init-update          1     -1    -1    -2
    backward/h2-update-update        2     -1    -1    -2
    backward/phi-init-update         1     0     -1    -1
    backward/phi-update-update       2     0     -1    -1
    backward/A4                      1     -1    -1    -1
    backward/A5                      2     -1    -1    -1
    backward/A6                      2     -1    -1    -1
    backward/E                       2     -1    -1    -1
    backward/router-init-init        1     zero  -1    -1
    backward/router-init-update      2     zero  -1    -1
    backward/router-update-init      2     -1    -1    -1
    backward/router-update-update    2     -1    -1    -1
"""

# muP with its own readout, std 1/N, under SGD, after 0, 1 and 2 updates. The paper's analysis ends there, and its
# experiments find exponents between the clean ones. Beyond, only the initial aggregate is predicted, which never
# recovers. "-" is what the paper's tables do not tell apart.
_MUP = """
                                     II                  III
    effective/embedding              zero  -1/2  0       zero  -1/2  0
    effective/expert_in              zero  -1/2  0       zero  0     0
    effective/expert_out             zero  0     0       zero  0     0
    propagating/embedding            zero  zero  zero    zero  zero  zero
    propagating/expert_in            zero  -1/2  0       zero  -1/2  0
    propagating/expert_out           zero  -1/2  0       zero  0     0
    aggregate/init                   -1/2  -1/2  -1/2    -1/2  -1/2  -1/2
    aggregate/propagating            zero  -1    -1/2    zero  0     0
    aggregate/A21                    zero  -1    -1/2    zero  -1    -1/2
    aggregate/A22                    zero  -1    -1/2    zero  0     0
    aggregate/effective              zero  0     0       zero  0     0
    aggregate/cross                  zero  -1    0       zero  -1    0
    activation/embedding             0     0     0       0     0     0
    activation/router                0     0     0       0     0     0
    activation/expert_in             0     0     0       0     0     0
    activation/expert_out            0     0     0       0     0     0
    activation/aggregate             -1/2  0     0       -1/2  0     0
    activation/readout               -1    0     0       -1    0     0
    backward/propagating/readout     -1    -1    -1      -1    -1    -1
    backward/effective/readout       zero  -3/2  -1      zero  -3/2  -1
    backward/propagating/router      -3/2  -1    -1      -3/2  -1    -1
    backward/effective/router        zero  -2    -1      zero  -2    -1
    backward/h2-init-init            -3/2  -3/2  -3/2    -2    -2    -2
    backward/h2-init-update          zero  -2    -3/2    zero  -5/2  -2
    backward/h2-update-init          zero  -1    -1      zero  -2    -2
    backward/h2-update-update        zero  -2    -1      zero  -3    -2
    backward/phi-init-init           -3/2  -3/2  -3/2    -     -     -
    backward/phi-init-update         zero  -2    -3/2    -     -     -
    backward/phi-update-init         zero  -1    -1      -     -     -
    backward/phi-update-update       zero  -2    -1      -     -     -
    backward/A4.1                    -3/2  -3/2  -3/2    -3/2  -3/2  -3/2
    backward/A4.2                    zero  -2    -3/2    zero  -2    -3/2
    backward/A5.1                    zero  -1    -1      zero  -1    -1
    backward/A5.2                    zero  -2    -1      zero  -2    -1
    backward/A6.1                    zero  -2    -2      zero  -1    -1
    backward/A6.2                    zero  -3    -2      zero  -2    -1
    backward/E.1                     zero  -2    -1      zero  -2    -1
    backward/E.2                     zero  -3    -1      zero  -3    -1
    backward/A4                      -3/2  -3/2  -3/2    -3/2  -3/2  -3/2
    backward/A5                      zero  -1    -1      zero  -1    -1
    backward/A6                      zero  -2    -2      zero  -1    -1
    backward/E                       zero  -2    -1      zero  -2    -1
    backward/router-init-init        -3/2  -3/2  -3/2    -     -     -
    backward/router-init-update      zero  -1    -1      -     -     -
    backward/router-update-init      zero  -2    -2      -     -     -
    backward/router-update-update    zero  -2    -1      -     -     -
    effective/readout                -     -     -       zero  -1    0
    propagating/readout              -     -     -       zero  0     0
    gradient/embedding               -3/2  -1    -1      -3/2  -1    -1
    gradient/router                  -3/2  -1    -1      -3/2  -1    -1
    gradient/expert_in               -3/2  -1    -1      -2    -2    -2
    gradient/expert_out              -2    -2    -2      -2    -2    -2
    gradient/readout                 -1/2  0     0       -1/2  0     0
"""

_ANALYSED = 2  # updates of muP that the paper follows
# Sums of terms that muP's table lists one by one, and that are of different orders.
_PARTS = {
    AGGREGATE("propagating"): (AGGREGATE("A21"), AGGREGATE("A22")),
    PROPAGATING("expert_out"): (PROPAGATING("expert_in"), EFFECTIVE("expert_in")),
    PROPAGATING("readout"): (AGGREGATE("A21"), AGGREGATE("A22"), AGGREGATE("effective"), AGGREGATE("cross")),
    ACTIVATION("readout"): (PROPAGATING("readout"), EFFECTIVE("readout")),
}

# How many inner products over the width a term holds between features, or errors, of different inputs. Such products
# are random at first, when they fall N^-1/2 faster, and of the predicted order once features and errors align. An
# exponent between the two is no miss.
_ALIGNING = {
    EFFECTIVE("router"): 1,
    LOGIT_CHANGE(): 1,
    GRADIENT("router"): 1,
    GRADIENT("router_bias"): 1,
    GRADIENT("qk_norm"): 1,
    GRADIENT("shared_gate"): 1,
    TO_GATES(INIT, UPDATED): 1,
    TO_GATES(UPDATED, UPDATED): 1,
    BACKWARD_PROPAGATING("router"): 1,
    THROUGH_ROUTER(INIT, INIT): 1,
    THROUGH_ROUTER(INIT, UPDATED): 1,
    BACKWARD_EFFECTIVE("router"): 2,
    THROUGH_ROUTER(UPDATED, INIT): 2,
    THROUGH_ROUTER(UPDATED, UPDATED): 2,
    AGGREGATE("cross"): 1,
    BACKWARD_EFFECTIVE("expert_in"): 1,
    BACKWARD("A6"): 1,
    BACKWARD("E"): 1,
}


def slack(name: str) -> Fraction:
    """How far below its predicted power a quantity may be, on its way up to it.

    >>> slack("gradient/router"), slack("effective/expert_in")
    (Fraction(1, 2), Fraction(0, 1))
    """
    return Fraction(_ALIGNING.get(whole(Quantity.named(name)), 0), 2)


def whole(name: Quantity) -> Quantity:
    """For the part of a term that the readout's update sent, the term: it is all of it under a readout of zeros."""
    return name.kind(name.of) if name.part == BY_UPDATE else name


# In Regime I muP differs from MSSP by its router's initial weights alone. What passes through them falls with the width
# where theory says that it should not (the paper's "anomaly"), so nothing is predicted of it.
THROUGH_INITIAL_ROUTER = (
    PROPAGATING("router"), BACKWARD_PROPAGATING("router"), THROUGH_ROUTER(INIT, INIT), THROUGH_ROUTER(INIT, UPDATED),
)  # fmt: skip

# Under the 1/L multiplier gradients inside blocks fall as 1/L with the depth, and nothing else changes with it.
_OUTSIDE_BLOCKS = ("readout", "embedding")


@dataclass(frozen=True)
class Exponent:
    """A predicted power of the size that grows; ``power`` None means that the term vanishes identically.

    ``slack`` is how far below the power a measured exponent may be while it rises to it.
    """

    power: Fraction | None
    slack: Fraction = Fraction(0)

    @property
    def is_power(self) -> bool:
        return self.power is not None


def tabulated(name: str, step: int, setting: Setting, *, depth: bool = False) -> Exponent | None:
    """The paper's exponent of a quantity after so many updates; None where it is silent.

    >>> tabulated("propagating/expert_out", 5, Setting.of("mssp", "II", "adam")).power
    Fraction(1, 2)
    >>> tabulated("aggregate/init", 20, Setting.of("mup", "III", "sgd", "mup")).power
    Fraction(-1, 2)

    Args:
        depth: the exponent in L, of a stack of residual blocks, instead of that in the width.
    """
    quantity, scheme, regime = Quantity.named(name), setting.scheme, setting.regime
    has_table = regime is not ANY  # whose terms follow from its sizes (``orders.py``)
    if scheme is MSSP and setting.readout == ZERO and has_table:
        in_width = _of_mssp(quantity, step, regime)
        return _in_depth(quantity, in_width) if depth else in_width
    if scheme is not MUP or depth or not has_table:
        return None
    if regime is I and setting.readout == ZERO and quantity not in THROUGH_INITIAL_ROUTER:
        return _of_mssp(quantity, step, regime)
    if quantity == AGGREGATE("init"):
        # Whatever the readout, the optimizer and the step.
        return Exponent(Fraction(0)) if regime is I else _exponent(quantity, _mup()[regime, quantity][-1])
    if setting.optimizer is not SGD or setting.readout != MUPS_OWN or step > _ANALYSED:
        return None
    return _climbing(quantity, _mup().get((regime, quantity)), step, regime)


def stable_exponent(name: str, regime: Regime | None, *, depth: bool = False) -> Fraction | None:
    """What maximal scale stability asks of a quantity once everything moves: the exponent it has under MSSP.

    >>> from mssp.planning.setting import II, III
    >>> stable_exponent("aggregate/init", III), stable_exponent("backward/A6", II)
    (Fraction(0, 1), Fraction(-1, 1))
    """
    exponent = tabulated(name, 2, Setting(scheme=MSSP, regime=regime, optimizer=ADAM), depth=depth)
    return None if exponent is None else exponent.power


def starts_after(name: Quantity) -> int:
    """The number of updates after which MSSP's dynamics have a term."""
    return _mssp()[whole(name)][0]


def _of_mssp(name: Quantity, step: int, regime: Regime | None) -> Exponent | None:
    if whole(name) not in _mssp():
        return None
    start, cells = _mssp()[whole(name)]
    assert regime is not None
    return Exponent(None) if start > step else _exponent(name, cells[regime])


def _in_depth(name: Quantity, in_width: Exponent | None) -> Exponent | None:
    if in_width is None or in_width.power is None:
        return in_width
    falls = name.kind in WAY_BACK and name.of not in _OUTSIDE_BLOCKS
    return Exponent(Fraction(-1 if falls else 0), in_width.slack)


def _climbing(name: Quantity, cells: list[str] | None, step: int, regime: Regime | None) -> Exponent | None:
    """The exponent of a muP term, with room for those in the columns before.

    Terms climb from column to column as fast as the learning rate lets them, so an exponent in between is no miss. Nor
    is one between the exponents of a sum's terms, since the term of lower order may have the larger constant.
    """
    exponent = None if cells is None else _exponent(name, cells[step])
    if exponent is None or exponent.power is None or cells is None:
        return exponent
    before = [_exponent(name, cell) for cell in cells[:step]]
    parts = [_climbing(part, _mup().get((regime, part)), step, regime) for part in _PARTS.get(name, ())]
    lowest = [exponent.power]
    lowest += [past.power for past in before if past is not None and past.power is not None]
    lowest += [part.power - part.slack for part in parts if part is not None and part.power is not None]
    return Exponent(exponent.power, max(exponent.power - min(lowest), exponent.slack))


def _exponent(name: Quantity, cell: str) -> Exponent | None:
    if cell == "-":
        return None
    if cell == "zero":
        return Exponent(None)
    return Exponent(Fraction(cell), slack(name))


@cache
def _mssp() -> dict[Quantity, tuple[int, dict[Regime, str]]]:
    """The number of updates after which a term is there, and its cell for each regime, by name."""
    header, *rows = (line.split() for line in _MSSP.strip().splitlines())
    regimes = [regime_named(word) for word in header[1:]]
    return {
        Quantity.named(name): (0 if start == "-" else int(start), dict(zip(regimes, cells, strict=True)))
        for name, start, *cells in rows
    }


@cache
def _mup() -> dict[tuple[Regime | None, Quantity], list[str]]:
    """The cells after 0, 1 and 2 updates, by regime and name."""
    header, *rows = (line.split() for line in _MUP.strip().splitlines())
    return {
        (regime_named(word), Quantity.named(name)): cells[3 * index : 3 * index + 3]
        for name, *cells in rows
        for index, word in enumerate(header)
    }
