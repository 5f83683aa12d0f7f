"""Factors: what the cells of the paper's tables hold. They are monomials in the dimensions of a model (``Power``).

A factor may also hold the smallest of several growths from a base to a target (``Least``).

>>> N, L = Power(N=1), Power(L=1)
>>> 1 / (N * L)
Power('N⁻¹L⁻¹')
>>> (1 / N).value({"N": 256})
0.00390625
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from mssp.planning.shape import FANS, SYMBOLS

# Fixed printing order, so that equal Powers always look equal.
_ORDER = ("M", "N", "N_e", "K", "D", *FANS, "L")
_SUPERSCRIPTS = str.maketrans("-0123456789/", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹ᐟ")


class Power(Mapping[str, Fraction]):
    """An immutable product of dimensions raised to rational exponents; ``Power()`` is 1.

    It is a mapping from symbol to exponent without zeros, so that comparing, hashing and writing it down are trivial.
    The symbols are those of :class:`mssp.Shape`, plus ``fan_in`` and ``fan_out`` of the matrix at hand.
    """

    __slots__ = ("_exponents",)

    def __init__(self, **exponents: int | str | Fraction) -> None:
        unknown = sorted(set(exponents) - set(_ORDER))
        if unknown:
            raise ValueError(f"unknown symbol {unknown[0]!r} in a Power: use one of {', '.join(_ORDER)}")
        parsed = {symbol: Fraction(exponents[symbol]) for symbol in _ORDER if symbol in exponents}
        self._exponents = {symbol: exponent for symbol, exponent in parsed.items() if exponent}

    def __getitem__(self, symbol: str) -> Fraction:
        return self._exponents[symbol]

    def __iter__(self) -> Iterator[str]:
        return iter(self._exponents)

    def __len__(self) -> int:
        return len(self._exponents)

    def __hash__(self) -> int:
        return hash(tuple(self._exponents.items()))

    def __mul__(self, other: Power) -> Power:
        if not isinstance(other, Power):
            return NotImplemented
        return Power(**{symbol: self.get(symbol, Fraction(0)) + other.get(symbol, 0) for symbol in {*self, *other}})

    def __pow__(self, exponent: int | Fraction) -> Power:
        return Power(**{symbol: own * exponent for symbol, own in self.items()})

    def __truediv__(self, other: Power) -> Power:
        return self * other**-1

    def __rtruediv__(self, one: int) -> Power:
        if one != 1:
            raise ValueError(f"a Power has no constant factor: write 1 / power, not {one} / power")
        return self**-1

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols of all dimensions that occur in it."""
        return frozenset(self)

    def substitute(self, replacements: Mapping[str, Power]) -> Power:
        """Replace symbols by Powers.

        >>> Power(fan_in="-1/2").substitute({"fan_in": Power(N=1)})
        Power('N⁻¹ᐟ²')
        """
        result = Power()
        for symbol, exponent in self.items():
            result *= replacements.get(symbol, Power(**{symbol: 1})) ** exponent
        return result

    def value(self, dims: Mapping[str, float], base: Mapping[str, float] | None = None) -> float:
        """The number this Power is at the given dimensions, whatever the base is."""
        result = 1.0
        for symbol, exponent in self.items():
            result *= float(dims[symbol]) ** float(exponent)
        return result

    def ratio(self, target: Mapping[str, float], base: Mapping[str, float]) -> float:
        """``value(target) / value(base)``, exactly 1 where the two agree."""
        return self.value({symbol: target[symbol] / base[symbol] for symbol in self})

    def json(self) -> dict[str, str]:
        """The exponents as fraction strings, by symbol.

        >>> Power(M="1/2", N_e="-1/2").json()
        {'M': '1/2', 'N_e': '-1/2'}
        """
        return {symbol: str(exponent) for symbol, exponent in self.items()}

    def plain(self) -> str:
        """This Power, written in ASCII.

        >>> Power(N=-1, L=-1).plain(), Power(M="1/2", N_e="-1/2").plain(), Power().plain()
        ('N^-1 L^-1', 'M^1/2 N_e^-1/2', '1')
        """
        return " ".join(symbol if exponent == 1 else f"{symbol}^{exponent}" for symbol, exponent in self.items()) or "1"

    def __str__(self) -> str:
        if not self:
            return "1"
        return "".join(s if e == 1 else s + str(e).translate(_SUPERSCRIPTS) for s, e in self.items())

    def __repr__(self) -> str:
        return f"Power('{self}')"


class Least:
    """A Power times the smallest of several growths, for a number that follows one dimension until another stops it.

    A growth is a Power at the target over the same Power at the base, and is written in small letters. So which of
    them is the smallest depends on both ends, and a step from A to C is not one from A to B and one from B to C.

    >>> boost = Least(Power(K="1/2"), Power(N="1/2", N_e="-1/2")) * Power(N_e="-1/2")
    >>> boost
    N_e⁻¹ᐟ² min(k¹ᐟ², n¹ᐟ²n_e⁻¹ᐟ²)
    >>> boost.ratio(target={"K": 8, "N": 64, "N_e": 16}, base={"K": 2, "N": 32, "N_e": 16})
    1.4142135623730951
    """

    __slots__ = ("_growths", "_power")

    def __init__(self, *growths: Power, power: Power | None = None) -> None:
        if len(growths) < 2:
            raise ValueError(f"the smallest of {len(growths)} Powers is no choice: give two or more")
        self._growths, self._power = growths, power or Power()

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset().union(self._power, *self._growths)

    def substitute(self, replacements: Mapping[str, Power]) -> Least:
        growths = (growth.substitute(replacements) for growth in self._growths)
        return Least(*growths, power=self._power.substitute(replacements))

    def value(self, dims: Mapping[str, float], base: Mapping[str, float] | None = None) -> float:
        """The number at these dimensions, for growths from the base; without one, from a base of ones."""
        origin = dict.fromkeys(dims, 1.0) if base is None else base
        return self._power.value(dims) * min(growth.ratio(dims, origin) for growth in self._growths)

    def ratio(self, target: Mapping[str, float], base: Mapping[str, float]) -> float:
        """The number at the target over that at the base, where nothing has grown."""
        return self._power.ratio(target, base) * min(growth.ratio(target, base) for growth in self._growths)

    def plain(self) -> str:
        return self._written(Power.plain)

    def json(self) -> dict[str, Any]:
        return {"times": self._power.json(), "min": [growth.json() for growth in self._growths]}

    def _written(self, write: Callable[[Power], str]) -> str:
        smallest = f"min({', '.join(write(growth).lower() for growth in self._growths)})"
        return f"{write(self._power)} {smallest}" if self._power else smallest

    def __mul__(self, other: Power) -> Least:
        return Least(*self._growths, power=self._power * other)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Least) and (self._growths, self._power) == (other._growths, other._power)

    def __hash__(self) -> int:
        return hash((self._growths, self._power))

    def __str__(self) -> str:
        return self._written(str)

    __repr__ = __str__


Factor = Power | Least


assert set(_ORDER) == {*SYMBOLS, *FANS}, "every symbol of a Shape needs a place in the printing order"
