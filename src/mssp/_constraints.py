"""What arguments must be, as data: every refusal reads ``NAME must be WHAT, got WHAT CAME``."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, TypeVar, cast

Kind = TypeVar("Kind")
Callee = TypeVar("Callee", bound=Callable[..., Any])

# Every product of sizes and their inverses stays far inside the range of floats.
_LARGEST = 2**53
_LONGEST = 100  # characters of a value in a message


class UnfitError(Exception):
    """What came is not what the argument must be; of a part of it, with what the part must be, and the part."""


class Constraint(Generic[Kind]):
    """What an argument must be: in words, and as a function that takes what came and gives what is meant.

    The function raises UnfitError where that is not what it must be, and a ValueError where there is more to say.

    >>> positive_int("batch", 50)
    50
    >>> positive_int("batch", "fifty")
    Traceback (most recent call last):
        ...
    ValueError: batch must be a positive whole number, got 'fifty'
    """

    def __init__(self, what: str | Callable[[], str], take: Callable[[Any], Kind], *, takes_none: bool = False) -> None:
        self._what, self.take, self.takes_none = what, take, takes_none

    @property
    def what(self) -> str:
        return self._what if isinstance(self._what, str) else self._what()

    def __call__(self, name: str, came: object) -> Kind:
        """What came, as the code means it; a ValueError names the argument otherwise."""
        try:
            return self.take(came)
        except UnfitError as error:
            what, part = error.args or (self.what, came)
            raise ValueError(f"{name} must be {what}, got {shown(part)}") from None


def shown(came: object) -> str:
    """What came, in a few words: numbers and words as they are written, objects by their type.

    >>> shown(0), shown("plan.json"), shown([]), shown(object())
    ('0', "'plan.json'", 'nothing', 'an object')
    """
    if isinstance(came, int) and abs(came) > _LARGEST:
        return f"a number of {int(math.log10(abs(came))) + 1} digits"
    if came is None or isinstance(came, Real):
        return str(came)
    if isinstance(came, Path):
        came = str(came)
    if isinstance(came, str):
        return repr(came if len(came) <= _LONGEST else f"{came[: _LONGEST // 2]}…{came[-_LONGEST // 2 :]}")
    if isinstance(came, list | tuple) and not came:
        return "nothing"
    if isinstance(came, list | tuple) and all(isinstance(part, Real | str | None) for part in came):
        text = repr(came)
        return text if len(text) <= _LONGEST else f"a {type(came).__name__} of {len(came)}"
    return f"the class {came.__name__}" if isinstance(came, type) else _with_article(type(came).__name__)


def _with_article(word: str) -> str:
    spelt = word[:2].isupper() and word[0] in "FHLMNRSX"  # as MLP is
    return f"an {word}" if spelt or word[0] in "aeiouAEIO" else f"a {word}"


# -- numbers -----------------------------------------------------------------------------------------------------------


def _whole(least: float, most: float = math.inf) -> Callable[[Any], int]:
    def take(came: Any) -> int:
        try:
            number = operator.index(came)
        except TypeError:
            raise UnfitError from None
        if isinstance(came, bool) or not least <= number <= most:  # True and False are no numbers
            raise UnfitError
        return number

    return take


def _real(fits: Callable[[float], bool]) -> Callable[[Any], float]:
    def take(came: Any) -> float:
        if not isinstance(came, Real) or isinstance(came, bool):
            raise UnfitError
        try:
            number = float(came)
        except OverflowError:
            raise UnfitError from None
        if not math.isfinite(number) or not fits(number):
            raise UnfitError
        return number

    return take


positive_int = Constraint("a positive whole number", _whole(1, _LARGEST))
whole = Constraint("a whole number", _whole(-math.inf))
number = Constraint("a number", _real(lambda number: True))
positive = Constraint("a positive number", _real(lambda number: number > 0))
positive_or_zero = Constraint("a number of at least 0", _real(lambda number: number >= 0))
more_than_one = Constraint("a number of more than 1", _real(lambda number: number > 1))


def at_least(least: int, most: float = math.inf) -> Constraint[int]:
    """A whole number in [least, most]."""
    bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most:g}"
    return Constraint(f"a whole number {bounds}", _whole(least, most))


def between(low: float, high: float) -> Constraint[float]:
    """A number in [low, high]."""
    return Constraint(f"a number from {low:g} to {high:g}", _real(lambda number: low <= number <= high))


# -- words, objects, and several of them -------------------------------------------------------------------------------


def _class_of(kind: type | str) -> Any:
    """The class, or no class where its module was not imported: then no object of it can have come."""
    if not isinstance(kind, str):
        return kind
    module, _, name = kind.rpartition(".")
    return getattr(sys.modules.get(module), name, ())


def kind_of(*kinds: type | str, what: str = "") -> Constraint[Any]:
    """An object of one of these classes, which may be given by name: nothing is imported for a check.

    >>> kind_of("torch.nn.Module").what
    'a torch.nn.Module'
    """

    def take(came: Any) -> Any:
        if not isinstance(came, tuple(map(_class_of, kinds))):
            raise UnfitError
        return came

    first = kinds[0] if isinstance(kinds[0], str) else f"{kinds[0].__module__}.{kinds[0].__qualname__}"
    short = first.rpartition(".")[2] if first.startswith(("mssp.", "builtins.")) else first
    return Constraint(what or _with_article(short), take)


def _switch(came: Any) -> bool:
    if not isinstance(came, bool):
        raise UnfitError
    return came


switch = Constraint("True or False", _switch)
word: Constraint[str] = kind_of(str, what="a word")
function: Constraint[Any] = kind_of(Callable, what="a function")  # type: ignore[arg-type]
mapping: Constraint[Any] = kind_of(Mapping, what="a mapping")


def _path(came: Any) -> str | os.PathLike[str]:
    if not isinstance(came, str | os.PathLike) or not os.fspath(came):
        raise UnfitError
    return came


path = Constraint("the path of a file", _path)


def one_of(choices: Iterable[Any] | Mapping[str, Any] | Callable[[], Any]) -> Constraint[Any]:
    """One of a few words, or the object that it stands for; a function imports the choices when they are needed."""

    def by_word() -> Mapping[str, Any]:
        known = choices() if callable(choices) else choices
        return known if isinstance(known, Mapping) else {str(choice): choice for choice in known}

    def take(came: Any) -> Any:
        for word, choice in by_word().items():
            if came is choice or (isinstance(came, str) and came == word):
                return choice
        raise UnfitError

    return Constraint(lambda: f"one of {', '.join(by_word())}", take)


def optional(one: Constraint[Any]) -> Constraint[Any]:
    """None, or what another constraint says."""
    return Constraint(lambda: one.what, lambda came: None if came is None else one.take(came), takes_none=True)


def _collection(came: Any) -> Any:
    if not isinstance(came, Iterable) or isinstance(came, str | bytes | Mapping):
        raise UnfitError
    return came


def _numbers(came: Any) -> Any:
    numbers = list(_collection(came))
    if not numbers or not all(isinstance(one, Real) for one in numbers):
        raise UnfitError
    return numbers


collection = Constraint("several things", _collection)
some_numbers = Constraint("one or more numbers", _numbers)


def several(one: Constraint[Any], least: int = 0) -> Constraint[tuple[Any, ...]]:
    """A sequence, in which each must be as another constraint says."""

    def part(came: Any) -> Any:
        try:
            return one.take(came)
        except UnfitError as error:
            raise UnfitError(*(error.args or (one.what, came))) from None

    def take(came: Any) -> tuple[Any, ...]:
        if not isinstance(came, Sequence) or isinstance(came, str | bytes) or len(came) < least:
            raise UnfitError
        return tuple(map(part, came))

    return Constraint(lambda: f"{'one or more' if least else 'a sequence'}, each {one.what}", take)


# -- objects of the package, of torch and of numpy: by name, since none is imported for it -----------------------------

a_plan: Constraint[Any] = kind_of("mssp.planning.plans.Plan", what="what mssp.plan returns")
a_module: Constraint[Any] = kind_of("torch.nn.Module")
an_array: Constraint[Any] = kind_of("numpy.ndarray")
claims: Constraint[Any] = kind_of(Mapping, what="a mapping of names to what parameters are")


def having(attribute: str, what: str) -> Constraint[Any]:
    """An object that is told by an attribute, where classes of several libraries are alike."""

    def take(came: Any) -> Any:
        if isinstance(came, type) or not hasattr(came, attribute):
            raise UnfitError
        return came

    return Constraint(what, take)


an_optimizer = having("param_groups", "a torch.optim.Optimizer")


def _device(came: Any) -> Any:
    torch = sys.modules["torch"]
    if not isinstance(came, str | torch.device):
        raise UnfitError
    try:
        return torch.device(came)
    except RuntimeError:
        raise UnfitError from None


a_program = having("scores", "a Program")
a_device = Constraint("a device, as cpu or cuda:1", _device)


# -- tables of arguments -----------------------------------------------------------------------------------------------


def takes(**constraints: Constraint[Any]) -> Callable[[Callee], Callee]:
    """A function or a class whose arguments are checked before anything is computed, and arrive as they are meant.

    >>> @takes(width=positive_int)
    ... def square(width: int) -> int:
    ...     return width**2
    >>> square(0)
    Traceback (most recent call last):
        ...
    ValueError: width must be a positive whole number, got 0
    """

    def decorate(callee: Callee) -> Callee:
        is_class = isinstance(callee, type)
        inner: Any = callee.__init__ if is_class else callee
        names = list(inspect.signature(inner).parameters)
        assert set(constraints) <= set(names), sorted(set(constraints) - set(names))

        def as_meant(name: str, came: Any) -> Any:
            return constraints[name](name, came) if name in constraints else came

        def as_all_mean(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
            positional = [*map(as_meant, names, args), *args[len(names) :]]
            return positional, {name: as_meant(name, came) for name, came in kwargs.items()}

        def outer(*args: Any, **kwargs: Any) -> Any:
            positional, named = as_all_mean(args, kwargs)
            return inner(*positional, **named)

        # A function of the callee's own module, as doctest asks before it looks for examples.
        outer = FunctionType(outer.__code__, inner.__globals__, closure=outer.__closure__)
        functools.update_wrapper(outer, inner)
        vars(outer)["CONSTRAINTS"] = constraints
        if not is_class:
            return cast(Callee, outer)
        callee.__init__ = outer  # type: ignore[method-assign]
        return callee

    return decorate
