"""The kinds of flags: of each, its type, how tyro reads it from the command line, and what it must be.

A kind is an annotation with these three parts. tyro only splits the command line: it puts words, or numbers where the
words are numbers, into the fields of a command. :func:`check` then holds them against their constraints, and replaces
them by what they stand for. From there on a field holds what its type says.
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
from mssp._files import is_stream, why_not_writable
from mssp.data.names import TOKENIZERS, dataset_maker
from mssp.hf.hub import is_on_the_hub
from mssp.hosts import HOSTS
from mssp.hosts.olmo_core import QK_NORMS
from mssp.ladders.tuned import data_with_tuned_multipliers
from mssp.planning import setting
from mssp.planning.arguments import ALL, EPS_RULES, RESIDUAL_RULES
from mssp.planning.explanation import REASONS
from mssp.planning.plans import Plan
from mssp.planning.recipe import BETAS
from mssp.planning.setting import GROWTHS, OPTIMIZERS, READOUTS, REGIMES, SCHEMES
from mssp.sweep import metrics
from mssp.train.run_log import RUN

# -- how tyro reads a flag ---------------------------------------------------------------------------------------------

_Reader = PrimitiveConstructorSpec[Any]


def _reader(metavar: str, nargs: Any, read: Callable[[list[str]], Any], *, repeated: bool = False) -> _Reader:
    return PrimitiveConstructorSpec(
        nargs=nargs,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
        _action="append" if repeated else None,
    )


def _word(metavar: str, read: Callable[[str], Any] = str) -> _Reader:
    return _reader(metavar, 1, lambda words: read(words[0]))


def _words(metavar: str, read: Callable[[str], Any] = str) -> _Reader:
    return _reader(f"{metavar} [...]", "*", lambda words: tuple(map(read, words)))


def _repeated_words(metavar: str) -> _Reader:
    """The words of a flag that may be repeated. tyro merges mappings: unique keys keep every word."""
    return _reader(f"{metavar} [...]", "*", lambda words: {object(): word for word in words or [""]}, repeated=True)


def _number(word: str) -> int | float | str:
    """The number that a word spells, or else the word."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


_INT, _NUMBER, _NAME, _FILE = _word("INT", _number), _word("NUMBER", _number), _word("NAME"), _word("FILE")
_INTS, _NUMBERS, _NAMES = _words("INT", _number), _words("NUMBER", _number), _words("NAME")
_QUIET = arg(help_behavior_hint="")  # help texts say what the default is, so tyro does not append it


# -- what flags must be: constraints that arguments of functions do not have -------------------------------------------


def _in_utf8(value: Any) -> str:
    """A text that came in UTF-8. Results name the files that they are made of, and are written in UTF-8."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise UnfitError("a name in UTF-8", value) from None
    return str(value)


def _path(what: str, fits: Callable[[Path], bool]) -> Constraint[Path]:
    def take(value: Any) -> Path:
        if not _in_utf8(value) or not fits(Path(value)):
            raise UnfitError
        return Path(value)

    return Constraint(what, take)


def _in_a_folder(path: Path) -> bool:
    return path.name != "" and not path.is_dir() and path.absolute().parent.is_dir()


def _writable(path: Path) -> bool:
    """Whether a path is a file's in a folder that is there. What may not be written all the same is refused by name."""
    if not _in_a_folder(path):
        return False
    if reason := why_not_writable(path):
        raise ValueError(f"{path} {reason}")
    return True


def _that_ends_in(suffixes: tuple[str, ...], module: str) -> Constraint[Path]:
    """A file to write with one of these suffixes. The module's ``check_target`` refuses what cannot be written here."""

    def take(value: Any) -> Path:
        path = _to_write.take(value)
        if len(suffixes) == 1 and is_stream(path):
            return path  # a pipe has no suffix, and there is one format
        if path.suffix.lower() not in suffixes:
            raise UnfitError
        import_module(module).check_target(path)
        return path

    ending = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
    return Constraint(f"a file to write that ends in {ending}, in a folder that is there", take)


def _config_or_name(value: Any) -> str:
    if not is_on_the_hub(_in_utf8(value)):
        _config.take(value)
    return str(value)


_to_write = _path("a file to write in a folder that is there", _writable)
_to_keep = _path("a file to write in a folder that is there", lambda path: _in_a_folder(path) and not is_stream(path))
_to_update = _path("a file to write in a folder that is there", lambda path: _writable(path) and not is_stream(path))
_to_read = _path("a file that is there", Path.is_file)
_to_report = _path(
    "a file that is there, or the folder of a run", lambda path: path.is_file() or (path / RUN).is_file()
)
_config = _path("a config.json that is there, or its folder", Path.exists)
_model_config = Constraint(
    "a config.json that is there, its folder, or a model on the Hub, as owner/name", _config_or_name
)
_folder = _path(
    "a folder, or a name for one in a folder that is there",
    lambda path: path.is_dir() or (not path.exists() and path.absolute().parent.is_dir()),
)
_run_folder = _path("a folder, or a path at which one can be made", lambda path: path.is_dir() or not path.exists())
_figure = _that_ends_in((".html", ".svg", ".pdf", ".png"), "mssp.report.saving")
_page = _that_ends_in((".html",), "mssp.report.saving")
_table = _that_ends_in((".csv", ".json", ".jsonl", ".parquet"), "mssp.store.table")


def read_plan(file: Path) -> Plan:
    """The plan in a file that ``mssp plan --json`` wrote."""
    try:
        return Plan.from_json(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


_plan = Constraint(_to_read.what, lambda value: read_plan(_to_read.take(value)))


def _file_and_function(value: Any) -> str:
    source, _, name = _in_utf8(value).rpartition(":")
    if not source or not name.isidentifier():
        raise UnfitError
    return str(value)


def _tokenizer_name(value: Any) -> str:
    if value not in TOKENIZERS:
        _to_read.take(value)
    return str(value)


def _known_multipliers() -> tuple[str, ...]:
    return "tuned", "ones", "plain", *data_with_tuned_multipliers()


def _multipliers_word(value: Any) -> str:
    if value not in _known_multipliers():
        _to_read.take(value)
    return str(value)


def _imported(module: str, name: str) -> Constraint[Any]:
    return one_of(lambda: list(getattr(import_module(module), name)))


def _mapped(what: str, key_of: Callable[[str], Any], bare_key: str | None, entry: Constraint[Any]) -> Constraint[Any]:
    """The words ``0.02 router=0.1`` as a mapping. A number without a name gets the bare key, if there is one."""

    def take(words: Mapping[Any, Any]) -> dict[Any, Any]:
        numbers: dict[Any, Any] = {}
        for word in words.values():
            name, equals, text = word.rpartition("=")
            if not equals and bare_key is None:
                raise UnfitError(what, word)
            try:
                key, number = key_of(name if equals else str(bare_key)), entry.take(_number(text))
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
_regime, _growth = one_of(REGIMES), one_of(GROWTHS)
_by_regime = _mapped("widths by regime, as III=1024", _regime.take, None, positive_int)
_scheme, _optimizer, _readout = one_of(SCHEMES), one_of(OPTIMIZERS), one_of(READOUTS)
# A flag holds the name of a dataset; that the name is known has been checked.
_data = Constraint(dataset_maker.what, lambda value: (dataset_maker.take(_in_utf8(value)), str(value))[1])
_metric = one_of(metrics.METRICS)
_tokenizer = Constraint(f"{', '.join(TOKENIZERS)} or a tokenizer.json that is there", _tokenizer_name)
_eps_rule, _residual_rule = one_of(EPS_RULES), one_of(RESIDUAL_RULES)
_builder = Constraint("a file or a module and a function in it, as model.py:build", _file_and_function)
_text = Constraint("a text", lambda value: _in_utf8(_constraints.kind_of(str).take(value)))


# -- kinds of flags ----------------------------------------------------------------------------------------------------

Switch = Annotated[bool, _QUIET]
Size = Annotated[int, _INT, positive_int, _QUIET]
MaybeSize = Annotated[int | None, _INT, positive_int, _QUIET]
Count = Annotated[int, _INT, at_least(0), _QUIET]
Seed = Annotated[int, _INT, _constraints.whole, _QUIET]
MaybeCount = Annotated[int | None, _INT, at_least(0), _QUIET]
MaybeSeed = Annotated[int | None, _INT, _constraints.whole, _QUIET]
Ratio = Annotated[float, _NUMBER, _constraints.more_than_one, _QUIET]
MaybePositive = Annotated[float | None, _NUMBER, _constraints.positive, _QUIET]
NotNegative = Annotated[float, _NUMBER, _constraints.positive_or_zero, _QUIET]
MaybeNotNegative = Annotated[float | None, _NUMBER, _constraints.positive_or_zero, _QUIET]
MaybeBetas = Annotated[
    tuple[float, float] | None, _reader("B1 B2", 2, lambda words: tuple(map(_number, words))), BETAS, _QUIET
]
Sizes = Annotated[tuple[int, ...], _INTS, several(positive_int), _QUIET]
SomeSizes = Annotated[tuple[int, ...], _INTS, several(positive_int, least=1), _QUIET]
Positives = Annotated[tuple[float, ...], _NUMBERS, several(_constraints.positive), _QUIET]

Builder = Annotated[str, Positional, _word("MODULE:BUILDER"), _builder, _QUIET]
Text = Annotated[str, _NAME, _text, _QUIET]
MaybeText = Annotated[str | None, _NAME, _text, _QUIET]
Data = Annotated[str, _NAME, _data, _QUIET]
Device = Annotated[str, _NAME, device_name, _QUIET]
Precision = Annotated[str, _NAME, _imported("mssp.replicas.lockstep", "PRECISIONS"), _QUIET]
MaybeSchedule = Annotated[str | None, _NAME, _imported("mssp.train.schedule", "SCHEDULES"), _QUIET]
MaybePrecision = Annotated[str | None, _NAME, _imported("mssp.train.settings", "PRECISIONS"), _QUIET]
Trackers = Annotated[tuple[str, ...], _NAMES, several(_imported("mssp.train.trackers", "TRACKERS")), _QUIET]
Method = Annotated[str, _NAME, _imported("mssp.sweep.search", "METHODS"), _QUIET]
MaybeLayout = Annotated[str | None, _NAME, one_of(("ddp", "fsdp", "ep")), _QUIET]
MaybeProcesses = Annotated[int | None, _INT, at_least(2, 16), _QUIET]
Activation = Annotated[str, _NAME, _imported("mssp.nn.activations", "ACTIVATIONS"), _QUIET]
Gate = Annotated[str, _NAME, _imported("mssp.nn.router", "GATES"), _QUIET]
DataAction = Annotated[str, Positional, _word("ACTION"), one_of(("prepare", "check", "show")), _QUIET]
Tokenizer = Annotated[str, _NAME, _tokenizer, _QUIET]
Share = Annotated[float, _NUMBER, _constraints.between(0, 1), _QUIET]
Backend = Annotated[str, _NAME, one_of(("local", "ray")), _QUIET]
Metric = Annotated[metrics.Metric, _NAME, _metric, _QUIET]
MaybeMetric = Annotated[metrics.Metric | None, _NAME, _metric, _QUIET]
Multipliers = Annotated[tuple[str, ...], _NAMES, several(_multipliers, least=1), _QUIET]
MaybeMultipliers = Annotated[tuple[str, ...], _NAMES, several(_multipliers), _QUIET]
Host = Annotated[str, Positional, _word("HOST"), one_of(list(HOSTS))]
MaybeQkNorm = Annotated[str | None, _NAME, one_of(list(QK_NORMS)), _QUIET]
Role = Annotated[str, Positional, _word("ROLE"), one_of(list(REASONS))]

Regime = Annotated[setting.Regime, _word("I|II|III"), _regime, _QUIET]
MaybeRegime = Annotated[setting.Regime | None, _word("I|II|III"), _regime, _QUIET]
MaybeGrowth = Annotated[setting.Regime | None, _word("I|II|III|any"), _growth, _QUIET]
Regimes = Annotated[tuple[setting.Regime, ...], _words("I|II|III"), several(_regime, least=1), _QUIET]
Scheme = Annotated[setting.Scheme, _NAME, _scheme, _QUIET]
MaybeScheme = Annotated[setting.Scheme | None, _NAME, _scheme, _QUIET]
Schemes = Annotated[tuple[setting.Scheme, ...], _NAMES, several(_scheme, least=1), _QUIET]
Optimizer = Annotated[setting.Optimizer, _NAME, _optimizer, _QUIET]
MaybeOptimizer = Annotated[setting.Optimizer | None, _NAME, _optimizer, _QUIET]
Optimizers = Annotated[tuple[setting.Optimizer, ...], _NAMES, several(_optimizer, least=1), _QUIET]
Readout = Annotated[str, _NAME, _readout, _QUIET]
MaybeReadout = Annotated[str | None, _NAME, _readout, _QUIET]
MaybeEpsRule = Annotated[str | None, _NAME, _eps_rule, _QUIET]
MaybeResidualRule = Annotated[str | None, _NAME, _residual_rule, _QUIET]

ByRole = Annotated[Mapping[str, float], _repeated_words("X|ROLE=X"), _by_role, _QUIET]
ByRoleOnly = Annotated[Mapping[str, float], _repeated_words("ROLE=X"), _by_role_only, _QUIET]
ByRegime = Annotated[Mapping[setting.Regime, int], _repeated_words("REGIME=X"), _by_regime, _QUIET]

Target = Annotated[Path, _FILE, _to_write, _QUIET]
Kept = Annotated[Path, _FILE, _to_keep, _QUIET]
MaybeKept = Annotated[Path | None, _FILE, _to_keep, _QUIET]
Table = Annotated[Path, Positional, _word("PATH"), _to_update]
MaybeTarget = Annotated[Path | None, _FILE, _to_write, _QUIET]
Folder = Annotated[Path, _word("DIR"), _folder, _QUIET]
RunFolder = Annotated[Path, _word("DIR"), _run_folder, _QUIET]
MaybeFolder = Annotated[Path | None, _word("DIR"), _folder, _QUIET]
MaybeFigure = Annotated[Path | None, _FILE, _figure, _QUIET]
MaybeTable = Annotated[Path | None, _FILE, _table, _QUIET]
Page = Annotated[Path, _FILE, _page, _QUIET]
MaybeConfig = Annotated[Path | None, _FILE, _config, _QUIET]
ModelConfig = Annotated[str, Positional, _word("CONFIG"), _model_config, _QUIET]
MaybePlan = Annotated[Plan | None, _FILE, _plan, _QUIET]
MaybeFiles = Annotated[tuple[Path, ...], _words("FILE"), several(_to_read), _QUIET]
Files = Annotated[
    tuple[Path, ...], Positional, _words("FILE"), several(_to_read), arg(metavar="FILE [...]", help_behavior_hint="")
]
Evidence = Annotated[
    tuple[Path, ...], Positional, _words("FILE"), several(_to_report), arg(metavar="FILE [...]", help_behavior_hint="")
]


# -- the flags of a command --------------------------------------------------------------------------------------------


class Flag(NamedTuple):
    """A flag of a command: its name on the command line, the attribute that holds its value, and its constraint."""

    name: str
    holder: Any
    attribute: str
    constraint: Constraint[Any]


def flags_of(command: Any, prefix: str = "--") -> Iterator[Flag]:
    """All flags of a command that take a value, with those of its groups, as ``--target.width``. Switches take none."""
    hints = get_type_hints(type(command), include_extras=True)
    for field in fields(command):
        name = f"{prefix}{field.name.replace('_', '-')}"
        if is_dataclass(hints[field.name]):
            yield from flags_of(getattr(command, field.name), f"{name}.")
        metadata = getattr(hints[field.name], "__metadata__", ())
        for constraint in metadata:
            if isinstance(constraint, Constraint):
                [reader] = [part for part in metadata if isinstance(part, PrimitiveConstructorSpec)]
                metavar = reader.metavar.removesuffix(" [...]")
                yield Flag(metavar if Positional in metadata else name, command, field.name, constraint)


def check(command: Any) -> None:
    """Replace the value of every flag by what it stands for. One that does not fit is refused, defaults among them."""
    for flag in flags_of(command):
        value = getattr(flag.holder, flag.attribute)
        if value is not None:
            setattr(flag.holder, flag.attribute, flag.constraint(flag.name, value))


def refuse_what_a_plan_says(command: Any, names: Collection[str], plan_flag: str) -> None:
    """Refuse flags for what the plan in a file says already: they would be ignored."""
    for name, default in vars(type(command)()).items():
        if name in names and getattr(command, name) != default:
            raise ValueError(f"--{name.replace('_', '-')} does not go with {plan_flag}: the plan file says it")


def refuse_both(command: Any, *switches: str) -> None:
    """Refuse switches that exclude each other, if all of them are on."""
    if all(getattr(command, switch) for switch in switches):
        raise ValueError(f"{' and '.join(f'--{switch}' for switch in switches)} exclude each other")
