"""Factors: what the cells of the paper's tables hold. They are monomials in the dimensions of a model (``Power``).

A factor may also be the smallest of several monomials (``Least``).

>>> N, L = Power(N=1), Power(L=1)
>>> 1 / (N * L)
Power('N⁻¹L⁻¹')
>>> (1 / N).value({"N": 256})
0.00390625
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

    def grows_with(self, symbol: str) -> bool:
        return self.get(symbol, 0) > 0

    def substitute(self, replacements: Mapping[str, Power]) -> Power:
        """Replace symbols by Powers.

        >>> Power(fan_in="-1/2").substitute({"fan_in": Power(N=1)})
        Power('N⁻¹ᐟ²')
        """
        result = Power()
        for symbol, exponent in self.items():
            result *= replacements.get(symbol, Power(**{symbol: 1})) ** exponent
        return result

    def value(self, dims: Mapping[str, float]) -> float:
        """The number this Power is at the given dimensions."""
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
    """The smallest of several Powers, for a number that follows one dimension until another one stops it.

    >>> boost = Least(Power(K=1), Power(N=1, N_e=-1)) ** Fraction(1, 2)
    >>> boost, boost.value({"K": 9, "N": 64, "N_e": 16}), 1 / boost
    (min(K¹ᐟ², N¹ᐟ²N_e⁻¹ᐟ²), 2.0, max(K⁻¹ᐟ², N⁻¹ᐟ²N_e¹ᐟ²))

    A negative power of it is the largest of the parts' powers.
    """

    __slots__ = ("_largest", "_parts")

    def __init__(self, *parts: Power, largest: bool = False) -> None:
        if len(parts) < 2:
            raise ValueError(f"the smallest of {len(parts)} Powers is no choice: give two or more")
        self._parts, self._largest = parts, largest

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset().union(*self._parts)

    def grows_with(self, symbol: str) -> bool:
        return any(part.grows_with(symbol) for part in self._parts)

    def substitute(self, replacements: Mapping[str, Power]) -> Least:
        return Least(*(part.substitute(replacements) for part in self._parts), largest=self._largest)

    def value(self, dims: Mapping[str, float]) -> float:
        return (max if self._largest else min)(part.value(dims) for part in self._parts)

    def ratio(self, target: Mapping[str, float], base: Mapping[str, float]) -> float:
        return self.value(target) / self.value(base)

    def plain(self) -> str:
        return f"{self._name}({', '.join(part.plain() for part in self._parts)})"

    def json(self) -> dict[str, Any]:
        return {self._name: [part.json() for part in self._parts]}

    @property
    def _name(self) -> str:
        return "max" if self._largest else "min"

    def __mul__(self, other: Power) -> Least:
        return Least(*(part * other for part in self._parts), largest=self._largest)

    def __pow__(self, exponent: int | Fraction) -> Least:
        return Least(*(part**exponent for part in self._parts), largest=self._largest != (exponent < 0))

    def __rtruediv__(self, one: int) -> Least:
        if one != 1:
            raise ValueError(f"a factor of a table has no constant: write 1 / factor, not {one} / factor")
        return self**-1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Least) and (self._parts, self._largest) == (other._parts, other._largest)

    def __hash__(self) -> int:
        return hash((self._parts, self._largest))

    def __str__(self) -> str:
        return f"{self._name}({', '.join(map(str, self._parts))})"

    __repr__ = __str__


Factor = Power | Least


assert set(_ORDER) == {*SYMBOLS, *FANS}, "every symbol of a Shape needs a place in the printing order"
