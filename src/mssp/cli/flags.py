"""Kinds of flags: what each must be, and what its words stand for.

A kind is a type for the code, a form for tyro and a constraint. tyro hands words on, :func:`check` takes them for what
they mean, and from there on a flag holds what its type says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

from tyro.conf import Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from mssp import _constraints
from mssp._constraints import Constraint, UnfitError, at_least, one_of, positive_int, several
from mssp._environment import device_name
from mssp.data.names import dataset_maker
from mssp.hosts import HOSTS
from mssp.hosts.olmo_core import QK_NORMS
from mssp.ladders.tuned import data_with_tuned_multipliers
from mssp.planning import setting
from mssp.planning.arguments import ALL
from mssp.planning.explanation import REASONS
from mssp.planning.plans import Plan
from mssp.planning.recipe import BETAS
from mssp.planning.setting import OPTIMIZERS, READOUTS, REGIMES, SCHEMES
from mssp.sweep import metrics

# -- what tyro is told -------------------------------------------------------------------------------------------------

_Form = PrimitiveConstructorSpec[Any]


def _words(metavar: str, nargs: Any, read: Callable[[list[str]], Any], *, repeated: bool = False) -> _Form:
    return PrimitiveConstructorSpec(
        nargs=nargs,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
        _action="append" if repeated else None,
    )


def _one(metavar: str, read: Callable[[str], Any] = str) -> _Form:
    return _words(metavar, 1, lambda words: read(words[0]))


def _many(metavar: str, read: Callable[[str], Any] = str) -> _Form:
    return _words(f"{metavar} [...]", "*", lambda words: tuple(map(read, words)))


def _by(metavar: str) -> _Form:
    """The words of a flag that may be repeated; tyro merges mappings, and no word is to get lost."""
    return _words(f"{metavar} [...]", "*", lambda words: {object(): word for word in words or [""]}, repeated=True)


def _number(word: str) -> int | float | str:
    """A number, or the word that is none."""
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            pass
    return word


_INT, _NUMBER, _NAME, _FILE = _one("INT", _number), _one("NUMBER", _number), _one("NAME"), _one("FILE")
_INTS, _NUMBERS, _NAMES = _many("INT", _number), _many("NUMBER", _number), _many("NAME")
_QUIET = arg(help_behavior_hint="")  # what it says of defaults, help texts say better


# -- what flags must be ------------------------------------------------------------------------------------------------


def _path(what: str, fits: Callable[[Path], bool]) -> Constraint[Path]:
    def take(came: Any) -> Path:
        if not str(came) or not fits(Path(came)):
            raise UnfitError
        return Path(came)

    return Constraint(what, take)


def _writable(path: Path) -> bool:
    return path.name != "" and not path.is_dir() and path.absolute().parent.is_dir()


def _that_ends_in(suffixes: tuple[str, ...], module: str) -> Constraint[Path]:
    """A file to write of the kind that its suffix names; the module says whether it can be written here."""

    def take(came: Any) -> Path:
        path = to_write.take(came)
        if path.suffix.lower() not in suffixes:
            raise UnfitError
        import_module(module).check_target(path)
        return path

    ending = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
    return Constraint(f"a file to write that ends in {ending}, in a folder that is there", take)


to_write = _path("a file to write in a folder that is there", _writable)
_to_read = _path("a file that is there", Path.is_file)
_config = _path("a config.json that is there, or its folder", Path.exists)
_folder = _path(
    "a folder, or a name for one in a folder that is there",
    lambda path: path.is_dir() or (not path.exists() and path.absolute().parent.is_dir()),
)
_figure = _that_ends_in((".html", ".svg", ".pdf", ".png"), "mssp.report.saving")
_page = _that_ends_in((".html",), "mssp.report.saving")
_table = _that_ends_in((".csv", ".json", ".jsonl", ".parquet"), "mssp.store.table")


def plan_in(file: Path) -> Plan:
    """The plan in a file that ``mssp plan --json`` wrote."""
    try:
        return Plan.from_json(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


_plan = Constraint(_to_read.what, lambda came: plan_in(_to_read.take(came)))


def _known_multipliers() -> tuple[str, ...]:
    return "tuned", "ones", "plain", *data_with_tuned_multipliers()


def _multipliers_word(came: Any) -> str:
    if came not in _known_multipliers():
        _to_read.take(came)
    return str(came)


def _imported(module: str, name: str) -> Constraint[Any]:
    return one_of(lambda: list(getattr(import_module(module), name)))


def _mapped(what: str, key_of: Callable[[str], Any], everywhere: str | None, one: Constraint[Any]) -> Constraint[Any]:
    """``0.02 router=0.1`` as a mapping; a bare number goes under ``everywhere``."""

    def take(came: Mapping[Any, Any]) -> dict[Any, Any]:
        numbers: dict[Any, Any] = {}
        for word in came.values():
            name, equals, text = word.rpartition("=")
            if not equals and everywhere is None:
                raise UnfitError(what, word)
            try:
                key, number = key_of(name if equals else str(everywhere)), one.take(_number(text))
            except UnfitError:
                raise UnfitError(what, word) from None
            if key in numbers:
                raise UnfitError(f"one number for {key}", (numbers[key], number))
            numbers[key] = number
        return numbers

    return Constraint(what, take)


_by_role = _mapped("a positive number, or positive numbers by role, as router=2", str, ALL, _constraints.positive)
_by_role_only = _mapped("positive numbers by role, as router=2", str, None, _constraints.positive)
_multipliers = Constraint(
    lambda: f"one of {', '.join(_known_multipliers())}, or a file of mssp tune that is there", _multipliers_word
)
_regime = one_of(REGIMES)
_by_regime = _mapped("widths by regime, as III=1024", _regime.take, None, positive_int)
_scheme, _optimizer, _readout = one_of(SCHEMES), one_of(OPTIMIZERS), one_of(READOUTS)
_data = Constraint(dataset_maker.what, lambda came: (dataset_maker.take(came), str(came))[1])
_metric = one_of(metrics.METRICS)
_text = _constraints.kind_of(str, what="a text")


# -- kinds -------------------------------------------------------------------------------------------------------------

Switch = Annotated[bool, _QUIET]
Size = Annotated[int, _INT, positive_int, _QUIET]
MaybeSize = Annotated[int | None, _INT, positive_int, _QUIET]
Count = Annotated[int, _INT, at_least(0), _QUIET]
Seed = Annotated[int, _INT, _constraints.whole, _QUIET]
MaybeCount = Annotated[int | None, _INT, at_least(0), _QUIET]
Ratio = Annotated[float, _NUMBER, _constraints.more_than_one, _QUIET]
MaybePositive = Annotated[float | None, _NUMBER, _constraints.positive, _QUIET]
MaybeNotNegative = Annotated[float | None, _NUMBER, _constraints.positive_or_zero, _QUIET]
MaybeBetas = Annotated[
    tuple[float, float] | None, _words("B1 B2", 2, lambda words: tuple(map(_number, words))), BETAS, _QUIET
]
Sizes = Annotated[tuple[int, ...], _INTS, several(positive_int), _QUIET]
SomeSizes = Annotated[tuple[int, ...], _INTS, several(positive_int, least=1), _QUIET]
Positives = Annotated[tuple[float, ...], _NUMBERS, several(_constraints.positive), _QUIET]

MaybeText = Annotated[str | None, _NAME, _text, _QUIET]
Data = Annotated[str, _NAME, _data, _QUIET]
Device = Annotated[str, _NAME, device_name, _QUIET]
Precision = Annotated[str, _NAME, _imported("mssp.replicas.lockstep", "PRECISIONS"), _QUIET]
Method = Annotated[str, _NAME, _imported("mssp.sweep.search", "METHODS"), _QUIET]
Activation = Annotated[str, _NAME, _imported("mssp.nn.activations", "ACTIVATIONS"), _QUIET]
Gate = Annotated[str, _NAME, _imported("mssp.nn.router", "GATES"), _QUIET]
Backend = Annotated[str, _NAME, one_of(("local", "ray")), _QUIET]
Metric = Annotated[metrics.Metric, _NAME, _metric, _QUIET]
MaybeMetric = Annotated[metrics.Metric | None, _NAME, _metric, _QUIET]
Multipliers = Annotated[tuple[str, ...], _NAMES, several(_multipliers, least=1), _QUIET]
MaybeMultipliers = Annotated[tuple[str, ...], _NAMES, several(_multipliers), _QUIET]
Host = Annotated[str, Positional, _one("HOST"), one_of(list(HOSTS))]
MaybeQkNorm = Annotated[str | None, _NAME, one_of(list(QK_NORMS)), _QUIET]
Role = Annotated[str, Positional, _one("ROLE"), one_of(list(REASONS))]

Regime = Annotated[setting.Regime, _one("I|II|III"), _regime, _QUIET]
MaybeRegime = Annotated[setting.Regime | None, _one("I|II|III"), _regime, _QUIET]
Regimes = Annotated[tuple[setting.Regime, ...], _many("I|II|III"), several(_regime, least=1), _QUIET]
Scheme = Annotated[setting.Scheme, _NAME, _scheme, _QUIET]
MaybeScheme = Annotated[setting.Scheme | None, _NAME, _scheme, _QUIET]
Schemes = Annotated[tuple[setting.Scheme, ...], _NAMES, several(_scheme, least=1), _QUIET]
Optimizer = Annotated[setting.Optimizer, _NAME, _optimizer, _QUIET]
MaybeOptimizer = Annotated[setting.Optimizer | None, _NAME, _optimizer, _QUIET]
Optimizers = Annotated[tuple[setting.Optimizer, ...], _NAMES, several(_optimizer, least=1), _QUIET]
Readout = Annotated[str, _NAME, _readout, _QUIET]
MaybeReadout = Annotated[str | None, _NAME, _readout, _QUIET]

ByRole = Annotated[Mapping[str, float], _by("X|ROLE=X"), _by_role, _QUIET]
ByRoleOnly = Annotated[Mapping[str, float], _by("ROLE=X"), _by_role_only, _QUIET]
ByRegime = Annotated[Mapping[setting.Regime, int], _by("REGIME=X"), _by_regime, _QUIET]

Target = Annotated[Path, _FILE, to_write, _QUIET]
Table = Annotated[Path, Positional, _one("PATH"), to_write]
MaybeTarget = Annotated[Path | None, _FILE, to_write, _QUIET]
Folder = Annotated[Path, _one("DIR"), _folder, _QUIET]
MaybeFolder = Annotated[Path | None, _one("DIR"), _folder, _QUIET]
MaybeFigure = Annotated[Path | None, _FILE, _figure, _QUIET]
MaybeTable = Annotated[Path | None, _FILE, _table, _QUIET]
Page = Annotated[Path, _FILE, _page, _QUIET]
MaybeConfig = Annotated[Path | None, _FILE, _config, _QUIET]
MaybePlan = Annotated[Plan | None, _FILE, Constraint(_to_read.what, lambda came: plan_in(_to_read.take(came))), _QUIET]
Files = Annotated[
    tuple[Path, ...], Positional, _many("FILE"), several(_to_read), arg(metavar="FILE [...]", help_behavior_hint="")
]


# -- from words to what they mean --------------------------------------------------------------------------------------


class Flag(NamedTuple):
    """A flag of a command: what people call it, where its value is, and what it must be."""

    name: str
    holder: Any
    attribute: str
    constraint: Constraint[Any]


def flags_of(command: Any, prefix: str = "--") -> Iterator[Flag]:
    """All flags of a command but its switches, those of groups among them."""
    hints = get_type_hints(type(command), include_extras=True)
    for field in fields(command):
        name = f"{prefix}{field.name.replace('_', '-')}"
        if is_dataclass(hints[field.name]):
            yield from flags_of(getattr(command, field.name), f"{name}.")
        metadata = getattr(hints[field.name], "__metadata__", ())
        for constraint in metadata:
            if isinstance(constraint, Constraint):
                [form] = [entry for entry in metadata if isinstance(entry, PrimitiveConstructorSpec)]
                metavar = form.metavar.removesuffix(" [...]")
                yield Flag(metavar if Positional in metadata else name, command, field.name, constraint)


def check(command: Any) -> None:
    """Take every flag for what it means; one that is not what it must be is refused, be it a default."""
    for flag in flags_of(command):
        value = getattr(flag.holder, flag.attribute)
        if value is not None:
            setattr(flag.holder, flag.attribute, flag.constraint(flag.name, value))


def refuse_beside(command: Any, names: Collection[str], flag: str) -> None:
    """Refuse flags that the plan in a file answers already, rather than ignore them."""
    for name, default in vars(type(command)()).items():
        if name in names and getattr(command, name) != default:
            raise ValueError(f"--{name.replace('_', '-')} does not go with {flag}: the plan file says it")


def refuse_both(command: Any, *switches: str) -> None:
    if all(getattr(command, switch) for switch in switches):
        raise ValueError(f"{' and '.join(f'--{switch}' for switch in switches)} exclude each other")
