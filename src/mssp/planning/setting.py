"""Which cell of the prescription: optimizer, regime and scheme as data, and the setting that holds them.

Words such as ``"adamw"`` or ``"II"`` exist at two borders, in flags and in files. Everything between asks the objects
below, which are compared by identity. Another optimizer or scheme is one entry here and its rows in ``rules.py``
(CONTRIBUTING.md has the recipes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from mssp._constraints import positive_int
from mssp.planning.power import Factor
from mssp.planning.rules import (
    ROLES,
    Init,
    N,
    Row,
    Rows,
    Rule,
    by_shape,
    corrected,
    fan_in,
    flat,
    one,
    printed,
    smaller_router,
    source_of,
)  # fmt: skip
from mssp.planning.shape import SYMBOLS, Shape

# How a readout starts: at zero, with muP's standard deviation, or with the scheme's own.
READOUTS = ZERO, MUPS_OWN, SCHEMES_OWN = ("zero", "mup", "scheme")


class _Named:
    """One object per word, that a pickle finds again."""

    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Optimizer(_Named):
    """What rules, replicas and hosts need to know of an optimizer.

    Args:
        name: the word of flags and files.
        title: for people, and the class in ``torch.optim``.
        row: of :class:`mssp.planning.rules.Rows`, its learning rates.
        moments: tensors that it keeps of each parameter.
        eps: its default; None where it has neither eps nor betas.
        decays: whether weight decay is its own.
        rest: who moves the roles that have no such row.
    """

    name: str
    title: str
    row: str
    moments: int = 0
    eps: float | None = None
    decays: bool = False
    rest: Optimizer | None = None

    @property
    def default_eps(self) -> float | None:
        """Its own, or that of the optimizer that takes the rest."""
        return self.rest.default_eps if self.eps is None and self.rest is not None else self.eps

    @property
    def follows_gradients(self) -> bool:
        """Whether updates are as large as gradients: then these learning rates carry the errata of gradients."""
        return not self.moments


SGD = Optimizer(name="sgd", title="SGD", row="sgd")
ADAM = Optimizer(name="adam", title="Adam", row="adam", moments=2, eps=1e-8)
ADAMW = Optimizer(name="adamw", title="AdamW", row="adam", moments=2, eps=1e-8, decays=True)
OPTIMIZERS = (SGD, ADAM, ADAMW)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Regime(_Named):
    """What grows together, and the place of its cell in every row."""

    name: str
    grows: frozenset[str]
    cell: int

    def member(self, one: Shape, width: int) -> Shape:
        """The shape of another width in the family through ``one``.

        >>> II.member(Shape(width=64, expert_width=16, experts=4, active=2, depth=1), 256)
        Shape(N=256, N_e=16, M=16, K=8, L=1, D=1)
        """
        width = positive_int("width", width)
        growing = [name for symbol, name in SYMBOLS.items() if symbol in self.grows and symbol != "N"]
        sizes = {name: getattr(one, name) * width for name in growing}
        for name, size in sizes.items():
            if size % one.width:
                ratio = f"{getattr(one, name)}/{one.width}"
                raise ValueError(f"width {width} times {name}/width = {ratio} is no whole number: use another width")
        return replace(one, width=width, **{name: size // one.width for name, size in sizes.items()})


I = Regime(name="I", grows=frozenset({"N", "N_e"}), cell=0)
II = Regime(name="II", grows=frozenset({"N", "M", "K"}), cell=1)
III = Regime(name="III", grows=frozenset({"N", "N_e", "M", "K"}), cell=2)
REGIMES = (I, II, III)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Scheme(_Named):
    """Where its rows come from, and for which regimes and optimizers there are any.

    Args:
        rows: the rows of a role.
        regimes: those it is defined for; ``None`` alone where it is the same whatever grows.
        averages: whether it has 1/K on the experts and 1/L on the branches.
        stable: the regimes in which every term keeps its order, so that gradients are as Adam's eps says.
    """

    name: str
    title: str
    rows: Callable[[str], Rows]
    regimes: tuple[Regime | None, ...] = REGIMES
    optimizers: tuple[Optimizer, ...] = OPTIMIZERS
    averages: bool = True
    stable: tuple[Regime, ...] = ()

    @property
    def regime_free(self) -> bool:
        """One recipe whatever grows."""
        return self.regimes == (None,)


MSSP = Scheme(name="mssp", title="MSSP", rows=printed("mssp"), stable=REGIMES)
MUP = Scheme(name="mup", title="μP", rows=printed("mup"), stable=(I,))
MUP_HEURISTIC = Scheme(name="mup-heuristic", title="μP by shape", rows=by_shape)
SP = Scheme(name="sp", title="SP", rows=flat(one), regimes=(None,), averages=False)
NTP = Scheme(name="ntp", title="NTP", rows=flat(1 / fan_in), regimes=(None,), optimizers=(SGD,), averages=False)
# Jiang et al. 2026 is muP with a smaller router and one global eps (the paper's related work).
JIANG = Scheme(
    name="jiang", title="Jiang et al.", rows=smaller_router(printed("mup")), regimes=(III,), optimizers=(ADAM, ADAMW)
)
SCHEMES = (MSSP, MUP, MUP_HEURISTIC, SP, NTP, JIANG)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Which rules a model follows: carried whole from the flag to the database and the figure."""

    scheme: Scheme = MSSP
    regime: Regime | None = None
    optimizer: Optimizer = ADAMW
    readout: str = ZERO
    as_printed: bool = False

    @classmethod
    def of(
        cls,
        scheme: str | Scheme,
        regime: str | Regime | None,
        optimizer: str | Optimizer,
        readout: str = ZERO,
        as_printed: bool = False,
    ) -> Setting:
        """The setting of these words; unknown schemes, regimes and optimizers are refused, cells in :meth:`checked`.

        >>> print(Setting.of("mup", "II", "sgd"))
        Regime II · mup · sgd
        """
        found = scheme_named(scheme), optimizer_named(optimizer)
        return cls(
            scheme=found[0],
            regime=None if regime is None else regime_named(regime),
            optimizer=found[1],
            readout=readout,
            as_printed=as_printed,
        )

    def checked(self) -> Setting:
        """This setting, if it is a cell that the paper or the derived rules cover."""
        scheme, optimizer, regime = self.scheme, self.optimizer, self.regime
        if regime is None and not scheme.regime_free:
            raise ValueError(f"scheme {scheme.name!r} needs a regime: use one of {_listed(REGIMES)}")
        wrong_regime = not scheme.regime_free and regime not in scheme.regimes
        if wrong_regime or optimizer not in scheme.optimizers:
            for_optimizers = " and ".join(map(str, scheme.optimizers))
            if scheme.regimes in (REGIMES, (None,)):
                raise ValueError(f"scheme {scheme.name!r} is defined for {for_optimizers} only, not {optimizer}")
            raise ValueError(
                f"scheme {scheme.name!r} is defined for {for_optimizers} in regime "
                f"{' and '.join(map(str, scheme.regimes))}, not {optimizer} in {regime}"
            )
        return self

    def words(self) -> dict[str, Any]:
        """As flags and files have it."""
        return {
            "scheme": self.scheme.name,
            "regime": None if self.regime is None else self.regime.name,
            "optimizer": self.optimizer.name,
            "readout": self.readout,
            "as_printed": self.as_printed,
        }

    @cache  # noqa: B019 # settings are few, and a search over thousands of plans asks for the same rules
    def rule(self, role: str) -> Rule:
        """The cell of a role: with the errata, unless they are asked for as printed, and the choice of readout."""
        rows, optimizer = self.scheme.rows(role), self.optimizer_of(role)
        cell = 0 if self.scheme.regime_free or self.regime is None else self.regime.cell
        lr, source, init = _row(rows, optimizer)[cell], source_of(role), rows.init[cell]
        assert isinstance(init, Init), "a scheme has one side of the cells that the paper prints with two"
        if optimizer.follows_gradients and not self.scheme.regime_free:
            lr, source = corrected(role, lr, self.as_printed, cell)
        std = init.std
        if role == "readout" and self.readout != SCHEMES_OWN:
            std = {ZERO: None, MUPS_OWN: 1 / N}[check_readout(self.readout)]
        return Rule(role, std, lr, None if optimizer.eps is None else rows.eps[cell], init.shared, source)

    def optimizer_of(self, role: str) -> Optimizer:
        """Who moves a role: the first that has a row for it, of this optimizer and those that take the rest."""
        optimizer: Optimizer | None = self.optimizer
        while optimizer is not None:
            if self.scheme.rows(role).lr(optimizer.row) is not None:
                return optimizer
            optimizer = optimizer.rest
        raise ValueError(f"{self.scheme.title} has no learning rate of {role} for {self.optimizer.title}")

    @property
    def brief(self) -> str:
        regime = f"Regime {self.regime}" if self.regime is not None else ""
        return " · ".join(filter(None, (regime, self.scheme.name, self.optimizer.name)))

    def __str__(self) -> str:
        """For people: what is not as usual is named, and mostly nothing is.

        >>> print(Setting(scheme=MSSP, regime=II, optimizer=SGD, readout="mup"))
        Regime II · mssp · sgd · readout mup
        """
        return " · ".join(filter(None, (self.brief, self.details)))

    @property
    def details(self) -> str:
        """What is not as usual; mostly nothing."""
        readout = "" if self.readout == ZERO else f"readout {self.readout}"
        return " · ".join(filter(None, (readout, "as printed" if self.as_printed else "")))


def rule(role: str, scheme: str, regime: str | None, optimizer: str, as_printed: bool = False) -> Rule:
    """The rule for one role, its readout as the scheme has it.

    >>> rule("expert_out", "mssp", "II", "adam").init_std
    Power('M¹ᐟ²N_e⁻¹ᐟ²')
    """
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}: use one of {', '.join(ROLES)}")
    return Setting.of(scheme, regime, optimizer, SCHEMES_OWN, as_printed).checked().rule(role)


def check_readout(word: str) -> str:
    if word not in READOUTS:
        raise ValueError(f"unknown readout {word!r}: use one of {', '.join(READOUTS)}")
    return word


def scheme_named(word: str | Scheme) -> Scheme:
    return _look_up(SCHEMES, word, f"unknown scheme {word!r}: use one of")


def optimizer_named(word: str | Optimizer) -> Optimizer:
    return _look_up(OPTIMIZERS, word, f"no rules for optimizer {word!r}: the paper covers")


def regime_named(word: str | Regime) -> Regime:
    return _look_up(REGIMES, word, f"unknown regime {word!r}: use one of")


Kind = TypeVar("Kind", Scheme, Optimizer, Regime)


def _look_up(known: tuple[Kind, ...], word: object, complaint: str) -> Kind:
    for each in known:
        if word in (each, each.name):
            return each
    raise ValueError(f"{complaint} {_listed(known)}")


def _listed(known: Iterable[object]) -> str:
    return ", ".join(map(str, known))


def _again(kind: type, name: str) -> Any:
    """What a pickle of one of the objects above is read as."""
    return {Scheme: scheme_named, Optimizer: optimizer_named, Regime: regime_named}[kind](name)


def _row(rows: Rows, optimizer: Optimizer) -> Row[Factor]:
    found = rows.lr(optimizer.row)
    assert found is not None
    return found
