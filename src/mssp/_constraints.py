"""Constraints: what an argument must be, as data. Where it is not: ``NAME must be WHAT, got VALUE``."""

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
_LONGEST = 100  # the most characters of a value that a message shows


class UnfitError(Exception):
    """A value does not fit a constraint.

    Where only a part of the value does not fit, the arguments are what the part must be, and the part.
    """


class Constraint(Generic[Kind]):
    """What an argument must be: in words, and as a function from the value that was passed to the value that is meant.

    The function raises UnfitError for a value that does not fit, or a ValueError with a message of its own.

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

    def __call__(self, name: str, value: object) -> Kind:
        """Returns the value that is meant. A ValueError names the argument whose value does not fit."""
        try:
            return self.take(value)
        except UnfitError as error:
            what, part = error.args or (self.what, value)
            raise ValueError(f"{name} must be {what}, got {shown(part)}") from None


def shown(value: object) -> str:
    """A value as messages show it, in a few words: numbers and strings as they are written, objects by their type.

    >>> shown(0), shown("plan.json"), shown([]), shown(object())
    ('0', "'plan.json'", 'nothing', 'an object')
    """
    if isinstance(value, int) and abs(value) > _LARGEST:
        return f"a number of {int(math.log10(abs(value))) + 1} digits"
    if value is None or isinstance(value, Real):
        return str(value)
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else f"{value[: _LONGEST // 2]}…{value[-_LONGEST // 2 :]}")
    if isinstance(value, bytes | list | tuple) and not value:
        return "nothing"
    if isinstance(value, list | tuple) and all(isinstance(part, Real | str | None) for part in value):
        text = repr(value)
        return text if len(text) <= _LONGEST else f"a {type(value).__name__} of {len(value)}"
    return f"{len(value)} bytes" if isinstance(value, bytes) else _by_type(value)


def _by_type(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else _with_article(type(value).__name__)


def _with_article(word: str) -> str:
    spelt_out = word[:2].isupper() and word[0] in "FHLMNRSX"  # "an MLP": the name of the letter M starts with a vowel
    return f"an {word}" if spelt_out or word[0] in "aeiouAEIO" else f"a {word}"


# -- numbers -----------------------------------------------------------------------------------------------------------


def _whole(least: float, most: float = math.inf) -> Callable[[Any], int]:
    def take(value: Any) -> int:
        try:
            integer = operator.index(value)
        except TypeError:
            raise UnfitError from None
        if isinstance(value, bool) or not least <= integer <= most:  # True and False are no numbers
            raise UnfitError
        return integer

    return take


def _real(fits: Callable[[float], bool]) -> Callable[[Any], float]:
    def take(value: Any) -> float:
        if not isinstance(value, Real) or isinstance(value, bool):
            raise UnfitError
        try:
            real = float(value)
        except OverflowError:
            raise UnfitError from None
        if not math.isfinite(real) or not fits(real):
            raise UnfitError
        return real

    return take


positive_int = Constraint("a positive whole number", _whole(1, _LARGEST))
whole = Constraint("a whole number", _whole(-math.inf))
number = Constraint("a number", _real(lambda real: True))
positive = Constraint("a positive number", _real(lambda real: real > 0))
positive_or_zero = Constraint("a number of at least 0", _real(lambda real: real >= 0))
more_than_one = Constraint("a number of more than 1", _real(lambda real: real > 1))


def at_least(least: int, most: float = math.inf) -> Constraint[int]:
    """A whole number in [least, most]."""
    bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most:g}"
    return Constraint(f"a whole number {bounds}", _whole(least, most))


def between(low: float, high: float) -> Constraint[float]:
    """A number in [low, high]."""
    return Constraint(f"a number from {low:g} to {high:g}", _real(lambda real: low <= real <= high))


# -- words, objects and sequences --------------------------------------------------------------------------------------


def _class_of(kind: type | str) -> Any:
    """The class, or () where its module is not imported: then no object can be of the class."""
    if not isinstance(kind, str):
        return kind
    module, _, name = kind.rpartition(".")
    return getattr(sys.modules.get(module), name, ())


def kind_of(*kinds: type | str, what: str = "") -> Constraint[Any]:
    """An object of one of these classes. A class may be given by its name, so that a check imports nothing.

    >>> kind_of("torch.nn.Module").what
    'a torch.nn.Module'
    """

    def take(value: Any) -> Any:
        if not isinstance(value, tuple(map(_class_of, kinds))):
            raise UnfitError
        return value

    full_name = kinds[0] if isinstance(kinds[0], str) else f"{kinds[0].__module__}.{kinds[0].__qualname__}"
    name = full_name.rpartition(".")[2] if full_name.startswith(("mssp.", "builtins.")) else full_name
    return Constraint(what or _with_article(name), take)


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UnfitError
    return value


switch = Constraint("True or False", _switch)
word: Constraint[str] = kind_of(str, what="a word")
function: Constraint[Any] = kind_of(Callable, what="a function")  # type: ignore[arg-type]
mapping: Constraint[Any] = kind_of(Mapping, what="a mapping")


def _path(value: Any) -> str | os.PathLike[str]:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise UnfitError
    return value


path = Constraint("the path of a file", _path)


def one_of(choices: Iterable[Any] | Mapping[str, Any] | Callable[[], Any]) -> Constraint[Any]:
    """One of the choices, as the object or as the word for it. Choices that are slow to import come from a function."""

    def by_word() -> Mapping[str, Any]:
        available = choices() if callable(choices) else choices
        return available if isinstance(available, Mapping) else {str(choice): choice for choice in available}

    def take(value: Any) -> Any:
        for name, choice in by_word().items():
            if value is choice or (isinstance(value, str) and value == name):
                return choice
        raise UnfitError

    return Constraint(lambda: f"one of {', '.join(by_word())}", take)


def optional(inner: Constraint[Any]) -> Constraint[Any]:
    """None, or a value that fits the inner constraint."""
    return Constraint(lambda: inner.what, lambda value: None if value is None else inner.take(value), takes_none=True)


def _collection(value: Any) -> Any:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise UnfitError
    return value


def _numbers(value: Any) -> Any:
    numbers = list(_collection(value))
    if not numbers or not all(isinstance(element, Real) for element in numbers):
        raise UnfitError
    return numbers


collection = Constraint("several things", _collection)
some_numbers = Constraint("one or more numbers", _numbers)


def several(element: Constraint[Any], least: int = 0) -> Constraint[tuple[Any, ...]]:
    """A sequence of at least ``least`` elements, each of which fits the constraint ``element``."""

    def take_element(value: Any) -> Any:
        try:
            return element.take(value)
        except UnfitError as error:
            raise UnfitError(*(error.args or (element.what, value))) from None

    def take(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) < least:
            raise UnfitError
        return tuple(map(take_element, value))

    return Constraint(lambda: f"{'one or more' if least else 'a sequence'}, each {element.what}", take)


# -- objects of the package, of torch and of numpy: classes are given by name, so that none is imported ----------------

a_plan: Constraint[Any] = kind_of("mssp.planning.plans.Plan", what="what mssp.plan returns")
a_module: Constraint[Any] = kind_of("torch.nn.Module")
an_array: Constraint[Any] = kind_of("numpy.ndarray")
claims: Constraint[Any] = kind_of(Mapping, what="a mapping of names to what parameters are")


def having(attribute: str, what: str) -> Constraint[Any]:
    """An object with this attribute, where no single class covers all that fit."""

    def take(value: Any) -> Any:
        if isinstance(value, type) or not hasattr(value, attribute):
            raise UnfitError
        return value

    return Constraint(what, take)


def _config(value: Any) -> Any:
    if isinstance(value, str | os.PathLike):
        return _path(value)
    if isinstance(value, type) or not (isinstance(value, Mapping) or hasattr(value, "to_dict")):
        raise UnfitError
    return value


a_config = Constraint("the config of a model, as an object, a mapping, or the path of its file or folder", _config)
an_optimizer = having("param_groups", "a torch.optim.Optimizer")


def _device(value: Any) -> Any:
    torch = sys.modules["torch"]
    if not isinstance(value, str | torch.device):
        raise UnfitError
    try:
        return torch.device(value)
    except RuntimeError:
        raise UnfitError from None


a_program = having("scores", "a Program")
a_device = Constraint("a device, as cpu or cuda:1", _device)


# -- arguments of functions and classes --------------------------------------------------------------------------------


def takes(**constraints: Constraint[Any]) -> Callable[[Callee], Callee]:
    """Decorates a function or a class: its arguments are checked first, and it gets the values that are meant.

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
        original: Any = callee.__init__ if is_class else callee
        names = list(inspect.signature(original).parameters)
        assert set(constraints) <= set(names), sorted(set(constraints) - set(names))

        def checked(name: str, value: Any) -> Any:
            return constraints[name](name, value) if name in constraints else value

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            positional = [*map(checked, names, args), *args[len(names) :]]
            return original(*positional, **{name: checked(name, value) for name, value in kwargs.items()})

        # The wrapper gets the globals of the callee's module: doctest runs examples only of a module's own functions.
        wrapper = FunctionType(wrapper.__code__, original.__globals__, closure=wrapper.__closure__)
        functools.update_wrapper(wrapper, original)
        vars(wrapper)["CONSTRAINTS"] = constraints
        if not is_class:
            return cast(Callee, wrapper)
        callee.__init__ = wrapper  # type: ignore[method-assign]
        return callee

    return decorate
