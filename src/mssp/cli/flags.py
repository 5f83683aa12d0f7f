"""Kinds of flags: numbers that say what would be right, and settings by role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from mssp.planning.plans import Plan
from mssp.planning.rules import REGIMES


def _optional(metavar: str, read: Callable[[str], Any], what: str) -> PrimitiveConstructorSpec[Any]:
    def parse(words: list[str]) -> Any:
        try:
            return read(words[0])
        except ValueError:
            raise ValueError(f"must be {what}, got {words[0]!r}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=parse,
        is_instance=lambda value: value is None or isinstance(value, int | float),
        str_from_instance=lambda value: ["" if value is None else str(value)],
    )


def _two_numbers(words: list[str]) -> tuple[float, float]:
    try:
        first, second = (float(word) for word in words)
    except ValueError:
        raise ValueError(f"must be two numbers, got {' '.join(words)!r}") from None
    return first, second


def _some_words(words: list[str]) -> tuple[str, ...]:
    if not words:
        raise ValueError("takes a number or ROLE=NUMBER, got nothing")
    return tuple(words)


_BETAS: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs=2,
    metavar="B1 B2",
    instance_from_str=_two_numbers,
    is_instance=lambda value: value is None or isinstance(value, tuple),
    str_from_instance=lambda value: [str(number) for number in value or ("", "")],
)
_WORD: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="NAME",
    instance_from_str=lambda words: words[0],
    is_instance=lambda value: value is None or isinstance(value, str),
    str_from_instance=lambda value: [value or ""],
)
_WORDS: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs="*",
    metavar="",
    instance_from_str=_some_words,
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=list,
)
_QUIET = tyro.conf.arg(help_behavior_hint="")
Size = Annotated[int | None, _optional("INT", int, "a positive whole number"), _QUIET]
Number = Annotated[float | None, _optional("NUMBER", float, "a number"), _QUIET]
Betas = Annotated[tuple[float, float] | None, _BETAS, _QUIET]
Name = Annotated[str | None, _WORD, _QUIET]
Regime = Annotated[str | None, _WORD, tyro.conf.arg(metavar="I|II|III", help_behavior_hint="")]
Path = Annotated[str | None, _WORD, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
# One flag takes several words, and the flag may be repeated: a tuple for each time it was given.
_Words = Annotated[tuple[str, ...], _WORDS]
ByRole = Annotated[
    tuple[_Words, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(metavar="X|ROLE=X [...]", help_behavior_hint=""),
]
ByRoleOnly = Annotated[
    tuple[_Words, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(metavar="ROLE=X [...]", help_behavior_hint=""),
]
ByRegime = Annotated[
    tuple[_Words, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(metavar="REGIME=X [...]", help_behavior_hint=""),
]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME [...]", help_behavior_hint="")]
Sizes = Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT [...]", help_behavior_hint="")]
Numbers = Annotated[tuple[float, ...], tyro.conf.arg(metavar="NUMBER [...]", help_behavior_hint="")]


def by_role(flag: str, given: Sequence[Sequence[str]], everywhere: str) -> dict[str, float]:
    """``0.02 router=0.1`` as a mapping; a bare number goes under ``everywhere``."""
    found: dict[str, float] = {}
    for word in (word for words in given for word in words):
        role, equals, text = word.rpartition("=")
        key = role if equals else everywhere
        if key in found:
            raise ValueError(f"{flag} says {key} twice")
        try:
            found[key] = float(text)
        except ValueError:
            raise ValueError(f"{flag} takes a number or ROLE=NUMBER, got {word!r}") from None
    return found


def plan_in(file: str) -> Plan:
    """The plan in a file that ``mssp plan --json`` wrote."""
    try:
        return Plan.from_json(FilePath(file).read_bytes())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def by_regime(flag: str, given: Sequence[Sequence[str]]) -> dict[str, float]:
    """``III=1024`` as a mapping."""
    words = [word for several in given for word in several]
    try:
        found = by_role(flag, given, everywhere="")
    except ValueError:
        found = {"": 0.0}
    if not set(found) <= set(REGIMES):
        raise ValueError(f"{flag} takes REGIME=NUMBER with one of {', '.join(REGIMES)}, got {' '.join(words)!r}")
    return found
