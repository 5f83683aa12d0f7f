"""Optimizers, regimes and schemes as data, and the ``Setting`` that says which of them a model follows.

Words such as ``"adamw"`` or ``"II"`` exist in flags and in files alone. All code between flags and files uses the
objects below, which are compared by identity. Another optimizer or scheme is one entry here and its rows in
``rules.py`` (CONTRIBUTING.md has the recipes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mssp._constraints import kind_of, one_of, optional, positive_int, switch, takes
from mssp.planning import rules
from mssp.planning.shape import SYMBOLS, Shape

# How a readout starts: at zero, with muP's standard deviation, or with the scheme's own.
READOUTS = ZERO, MUPS_OWN, SCHEMES_OWN = ("zero", "mup", "scheme")


class _Named:
    """An object that is the only one of its name: unpickling gives the same object again."""

    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (type(self), self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Optimizer(_Named):
    """What rules, replicas and hosts need to know of an optimizer.

    Args:
        name: the word of flags and files.
        title: its name for people, which is also that of its class in ``torch.optim``.
        row: the field of :class:`mssp.planning.rules.Rows` that has its learning rates.
        moments: the number of tensors that it keeps for each parameter.
        eps: its default; None where it has neither eps nor betas.
        decays: whether it has weight decay.
        rest: the optimizer that moves the roles without such a row.
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
        """Its own eps, or that of the optimizer that moves the rest."""
        return self.rest.default_eps if self.eps is None and self.rest is not None else self.eps

    @property
    def follows_gradients(self) -> bool:
        """Whether updates are as large as gradients, so that its learning rates have the errata of gradients."""
        return not self.moments


SGD = Optimizer(name="sgd", title="SGD", row="sgd")
ADAM = Optimizer(name="adam", title="Adam", row="adam", moments=2, eps=1e-8)
ADAMW = Optimizer(name="adamw", title="AdamW", row="adam", moments=2, eps=1e-8, decays=True)
OPTIMIZERS = (SGD, ADAM, ADAMW)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Regime(_Named):
    """The dimensions that grow together, and the column of the regime's cells in the tables.

    ``ANY`` names no dimensions: its cells hold whatever grows.
    """

    name: str
    grows: frozenset[str]
    column: int

    def member(self, shape: Shape, width: int) -> Shape:
        """The shape of another width in the family through ``shape``.

        >>> II.member(Shape(width=64, expert_width=16, experts=4, active=2, depth=1), 256)
        Shape(N=256, N_e=16, M=16, K=8, L=1, D=1)
        """
        width = positive_int("width", width)
        growing = [name for symbol, name in SYMBOLS.items() if symbol in self.grows and symbol != "N"]
        sizes = {name: getattr(shape, name) * width for name in growing}
        for name, size in sizes.items():
            if size % shape.width:
                ratio = f"{getattr(shape, name)}/{shape.width}"
                raise ValueError(f"width {width} times {name}/width = {ratio} is no whole number: use another width")
        return replace(shape, width=width, **{name: size // shape.width for name, size in sizes.items()})


I = Regime(name="I", grows=frozenset({"N", "N_e"}), column=0)
II = Regime(name="II", grows=frozenset({"N", "M", "K"}), column=1)
III = Regime(name="III", grows=frozenset({"N", "N_e", "M", "K"}), column=2)
ANY = Regime(name="any", grows=frozenset(), column=3)
REGIMES = (I, II, III)  # the paper's
GROWTHS = (*REGIMES, ANY)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Scheme(_Named):
    """A parameterization: its rules, and the regimes and optimizers that it has rules for.

    Args:
        rows: a function from a role to its rows in the tables.
        regimes: those it is defined for; ``None`` alone where it is the same whatever grows.
        averages: whether it multiplies the sum over experts by 1/K and residual branches by 1/L.
        stable: the regimes in which every term keeps its order, so that gradients have the size of Adam's eps.
    """

    name: str
    title: str
    rows: Callable[[str], rules.Rows]
    regimes: tuple[Regime | None, ...] = REGIMES
    optimizers: tuple[Optimizer, ...] = OPTIMIZERS
    averages: bool = True
    stable: tuple[Regime, ...] = ()

    @property
    def regime_free(self) -> bool:
        """Whether it is one recipe, whatever grows."""
        return self.regimes == (None,)


MSSP = Scheme(name="mssp", title="MSSP", rows=rules.printed("mssp"), regimes=GROWTHS, stable=REGIMES)
MUP = Scheme(name="mup", title="μP", rows=rules.printed("mup"), regimes=GROWTHS, stable=(I,))
MUP_HEURISTIC = Scheme(name="mup-heuristic", title="μP by shape", rows=rules.by_shape)
SP = Scheme(name="sp", title="SP", rows=rules.regime_free(rules.one), regimes=(None,), averages=False)
NTP = Scheme(
    name="ntp",
    title="NTP",
    rows=rules.regime_free(1 / rules.fan_in),
    regimes=(None,),
    optimizers=(SGD,),
    averages=False,
)
# Jiang et al. 2026 is muP with a smaller router and one global eps (the paper's related work).
JIANG = Scheme(
    name="jiang",
    title="Jiang et al.",
    rows=rules.with_small_router_and_one_eps(MUP.rows),
    regimes=(III,),
    optimizers=(ADAM, ADAMW),
)
SCHEMES = (MSSP, MUP, MUP_HEURISTIC, SP, NTP, JIANG)


SCHEME, REGIME, OPTIMIZER = one_of(lambda: SCHEMES), one_of(lambda: GROWTHS), one_of(lambda: OPTIMIZERS)


@takes(
    scheme=kind_of(Scheme),
    regime=optional(kind_of(Regime)),
    optimizer=kind_of(Optimizer),
    readout=one_of(READOUTS),
    as_printed=switch,
)
@dataclass(frozen=True, kw_only=True)
class Setting:
    """Which rules a model follows. It is carried whole from the flag to the database and the figure."""

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
        """The setting that these words name. :meth:`checked` refuses one that has no rules.

        >>> print(Setting.of("mup", "II", "sgd"))
        Regime II · mup · sgd
        """
        return cls(
            scheme=scheme_named(scheme),
            optimizer=optimizer_named(optimizer),
            regime=None if regime is None else regime_named(regime),
            readout=readout,
            as_printed=as_printed,
        )

    def checked(self) -> Setting:
        """This setting, if its scheme has rules for its regime and its optimizer."""
        scheme, optimizer, regime = self.scheme, self.optimizer, self.regime
        if regime is None and not scheme.regime_free:
            raise ValueError(f"scheme {scheme.name!r} needs a regime: use one of {', '.join(map(str, GROWTHS))}")
        wrong_regime = not scheme.regime_free and regime not in scheme.regimes
        if wrong_regime or optimizer not in scheme.optimizers:
            for_optimizers = " and ".join(map(str, scheme.optimizers))
            if (set(scheme.regimes) >= set(REGIMES) and regime is not ANY) or scheme.regime_free:
                raise ValueError(f"scheme {scheme.name!r} is defined for {for_optimizers} only, not {optimizer}")
            raise ValueError(
                f"scheme {scheme.name!r} is defined for {for_optimizers} in regime "
                f"{' and '.join(map(str, scheme.regimes))}, not {optimizer} in {regime}"
            )
        if not self.has_rates:
            raise ValueError(
                f"{optimizer} is not planned for a growth that is none of the paper's regimes: its rates for routers "
                "and experts were not measured there; use adam or adamw, or say which regime to take"
            )
        return self

    @property
    def has_rates(self) -> bool:
        """Whether its column of the tables has learning rates of all roles: SGD's have none for any growth."""
        rows = (self.scheme.rows(role).lr(self.optimizer_of(role).row) for role in rules.ROLES)
        return all(row is not None and self._column < len(row) for row in rows)

    @property
    def _column(self) -> int:
        return 0 if self.scheme.regime_free or self.regime is None else self.regime.column

    def words(self) -> dict[str, Any]:
        """The words by which flags and files name this setting."""
        return {
            "scheme": self.scheme.name,
            "regime": None if self.regime is None else self.regime.name,
            "optimizer": self.optimizer.name,
            "readout": self.readout,
            "as_printed": self.as_printed,
        }

    @cache  # noqa: B019 # settings are few, and a search over thousands of plans asks for the same rules
    def rule(self, role: str) -> rules.Rule:
        """The rule of a role: with our corrections, unless ``as_printed``, and with the choice of readout."""
        rows, optimizer, column = self.scheme.rows(role), self.optimizer_of(role), self._column
        lrs, init, source = rows.lr(optimizer.row), rows.init[column], rules.source_of(role, column)
        assert lrs is not None
        assert isinstance(init, rules.Init), "a scheme has one variant of the cells that the paper prints with two"
        lr, std = lrs[column], init.std
        if optimizer.follows_gradients and not self.scheme.regime_free:
            lr, source = rules.corrected_sgd_lr(role, lr, self.as_printed, column)
        if role == "readout" and self.readout != SCHEMES_OWN:
            std = {ZERO: None, MUPS_OWN: 1 / rules.N}[self.readout]
        return rules.Rule(role, std, lr, None if optimizer.eps is None else rows.eps[column], init.shared, source)

    def optimizer_of(self, role: str) -> Optimizer:
        """The optimizer that moves a role: the first of this one, its ``rest`` and so on that has a row for it."""
        optimizer: Optimizer | None = self.optimizer
        while optimizer is not None:
            if self.scheme.rows(role).lr(optimizer.row) is not None:
                return optimizer
            optimizer = optimizer.rest
        raise ValueError(f"{self.scheme.title} has no learning rate of {role} for {self.optimizer.title}")

    @property
    def title(self) -> str:
        """As headings have it: ``MSSP · Regime II · SGD``, without the :attr:`details`."""
        return " · ".join(filter(None, (self.scheme.title, title_of(self.regime), self.optimizer.title)))

    @property
    def brief(self) -> str:
        return " · ".join(filter(None, (title_of(self.regime), self.scheme.name, self.optimizer.name)))

    def __str__(self) -> str:
        """For people.

        >>> print(Setting(scheme=MSSP, regime=II, optimizer=SGD, readout="mup"))
        Regime II · mssp · sgd · readout mup
        """
        return " · ".join(filter(None, (self.brief, self.details)))

    @property
    def details(self) -> str:
        """The choices that differ from the defaults; mostly none."""
        readout = "" if self.readout == ZERO else f"readout {self.readout}"
        return " · ".join(filter(None, (readout, "as printed" if self.as_printed else "")))


@takes(
    role=one_of((*rules.ROLES, *rules.RARE_ROLES)),
    scheme=SCHEME,
    regime=optional(REGIME),
    optimizer=OPTIMIZER,
    as_printed=switch,
)
def rule(
    role: str, scheme: str | Scheme, regime: str | Regime | None, optimizer: str | Optimizer, as_printed: bool = False
) -> rules.Rule:
    """The rule of one role, with the scheme's own readout.

    >>> rule("expert_out", "mssp", "II", "adam").init_std
    Power('M¹ᐟ²N_e⁻¹ᐟ²')
    """
    return Setting.of(scheme, regime, optimizer, SCHEMES_OWN, as_printed).checked().rule(role)


def title_of(regime: Regime | None) -> str:
    """As headings have it: ``Regime II``, ``any growth``, or nothing."""
    if regime is None:
        return ""
    return "any growth" if regime is ANY else f"Regime {regime}"


def scheme_named(word: str | Scheme) -> Scheme:
    scheme: Scheme = SCHEME("scheme", word)
    return scheme


def optimizer_named(word: str | Optimizer) -> Optimizer:
    optimizer: Optimizer = OPTIMIZER("optimizer", word)
    return optimizer


def regime_named(word: str | Regime) -> Regime:
    regime: Regime = REGIME("regime", word)
    return regime


def _named(kind: type, name: str) -> Any:
    """The object of this kind and name, for unpickling."""
    return {Scheme: scheme_named, Optimizer: optimizer_named, Regime: regime_named}[kind](name)
