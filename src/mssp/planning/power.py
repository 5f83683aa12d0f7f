"""Monomials in the dimensions of a model: the language the paper's tables are written in.

>>> N, L = Power(N=1), Power(L=1)
>>> 1 / (N * L)
Power('N⁻¹L⁻¹')
>>> (1 / N).value({"N": 256})
0.00390625
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

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
        symbols = {*self, *other}
        return Power(**{s: self.get(s, Fraction(0)) + other.get(s, Fraction(0)) for s in symbols})

    def __pow__(self, exponent: int | Fraction) -> Power:
        return Power(**{symbol: own * exponent for symbol, own in self.items()})

    def __truediv__(self, other: Power) -> Power:
        return self * other**-1

    def __rtruediv__(self, one: int) -> Power:
        if one != 1:
            raise ValueError(f"a Power has no constant factor: write 1 / power, not {one} / power")
        return self**-1

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
        """Symbol to exponent as a fraction string.

        >>> Power(M="1/2", N_e="-1/2").json()
        {'M': '1/2', 'N_e': '-1/2'}
        """
        return {symbol: str(exponent) for symbol, exponent in self.items()}

    def __str__(self) -> str:
        if not self:
            return "1"
        return "".join(s if e == 1 else s + str(e).translate(_SUPERSCRIPTS) for s, e in self.items())

    def __repr__(self) -> str:
        return f"Power('{self}')"


assert set(_ORDER) == {*SYMBOLS, *FANS}, "every symbol of a Shape needs a place in the printing order"
