"""Nonsense is refused by every public function and by every flag, before anything is computed, in one form of words.

Each argument of a function is nonsense in turn, and the only one that is given: it has to be refused before Python or
the function asks for the others. Each flag is nonsense in turn while all others are what they must be. What an argument
must be stands in the table of its function (:func:`mssp._constraints.takes`); what is right and what is nonsense for it
stands here, by its words.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import mssp
from mssp._constraints import Constraint
from mssp.cli.commands import COMMANDS, main
from mssp.cli.flags import flags_of

MODEL = nn.Linear(2, 2)
NONSENSE: dict[str, Any] = {
    "None": None, "a word": "nonsense", "nan": math.nan, "-1": -1, "0": 0, "1e300": 1e300, "''": "", "[]": [],
    "an object": object(), "a dict": {},
    # Arguments that were swapped, or a class in place of its object.
    "a model": MODEL, "a plan": mssp.plan(mssp.Shape(8, 8, 2, 2, 1), regime="I", lr=1.0),
    "an optimizer": torch.optim.SGD(MODEL.parameters()), "a class": nn.Linear, "a generator": MODEL.named_parameters(),
    "claims in a list": [("weight", "hidden")],
}  # fmt: skip
A_RESULT = "a result, which the library makes"
AN_ENTRY = "an entry of a table of the package"
IN_EVERY_STEP = "computed in every forward pass, also compiled: checks of its own look at its tensors"
EXEMPT = {
    "mssp.Plan": A_RESULT,
    "mssp.PlanWarning": "a warning",
    "mssp.Power": "its arguments are named by symbols, and it checks them itself",
    "mssp.Rule": A_RESULT,
    "mssp.apply.Claims": "a type",
    "mssp.cli.main": "reads flags, which the second half of this file holds",
    "mssp.coordcheck.Check": A_RESULT,
    "mssp.data.TokenFile": A_RESULT,
    "mssp.dmft.Comparison": A_RESULT,
    "mssp.dmft.Solution": A_RESULT,
    "mssp.hf.Proxy": A_RESULT,
    "mssp.hf.Suggestions": A_RESULT,
    "mssp.ladders.Ladder": "a protocol",
    "mssp.measure.Alarm": A_RESULT,
    "mssp.measure.Monitor": A_RESULT,
    "mssp.nn.ExpertWeights": IN_EVERY_STEP,
    "mssp.nn.GPTOutput": A_RESULT,
    "mssp.nn.RouterStatistics": A_RESULT,
    "mssp.nn.Routing": A_RESULT,
    "mssp.nn.apply_experts": IN_EVERY_STEP,
    "mssp.nn.route": IN_EVERY_STEP,
    "mssp.planning.Optimizer": AN_ENTRY,
    "mssp.planning.Regime": AN_ENTRY,
    "mssp.planning.Scheme": AN_ENTRY,
    "mssp.planning.Values": A_RESULT,
    "mssp.replicas.Trained": A_RESULT,
    "mssp.store.Chunk": A_RESULT,
    "mssp.store.NewRun": A_RESULT,
    "mssp.store.Result": A_RESULT,
    "mssp.store.Run": A_RESULT,
    "mssp.store.Study": A_RESULT,
    "mssp.sweep.Found": A_RESULT,
    "mssp.sweep.Score": A_RESULT,
    "mssp.sweep.Transfer": A_RESULT,
    "mssp.sweep.WidthSummary": A_RESULT,
    "mssp.train.Ended": A_RESULT,
    "mssp.train.SameStep": A_RESULT,
    "mssp.train.Step": A_RESULT,
}
EXEMPT_ARGUMENTS = {
    "mssp.data.load": {"name_or_path": "refused as data, see tests/data/test_names.py", "options": "by data set"},
    "mssp.apply.optimizer_for": {"options": "those of an optimizer's class"},
    "mssp.hf.from_config": {"settings": "the arguments of mssp.plan"},
    "mssp.hf.plan": {"settings": "the arguments of mssp.plan"},
    "mssp.hf.save_pretrained": {"settings": "those of the model's own save_pretrained"},
    "mssp.measure.ModuleProbe": {"batch": "whatever the model takes"},
    "mssp.monitor": {"to": "trackers of several libraries", "probe": "whatever the model takes"},
    "mssp.verify": {"probe": "whatever the model takes"},
    "mssp.same_step": {"batch": "whatever the loss takes"},
    "mssp.sweep.Local": {"device": "a torch.device", "_feed": "kept between studies"},
    "mssp.sweep.carry_out": {
        "backend": "a protocol", "job": "a protocol", "watcher": "a protocol",
    },
}  # fmt: skip


def enumerated() -> Iterator[tuple[str, Callable[..., Any]]]:
    """All that packages offer, under the first name."""
    seen: set[int] = set()
    packages = ["mssp", *(f"mssp.{each.name}" for each in pkgutil.iter_modules(mssp.__path__) if each.ispkg)]
    for package in map(importlib.import_module, packages):
        for name in getattr(package, "__all__", ()):
            offered = getattr(package, name)
            if callable(offered) and not isinstance(offered, ModuleType) and id(offered) not in seen:
                seen.add(id(offered))
                yield f"{package.__name__}.{name}", offered


OFFERED = dict(enumerated())
CHECKED = {name: offered for name, offered in OFFERED.items() if name not in EXEMPT}


def table_of(offered: Any) -> Mapping[str, Constraint[Any]]:
    table: Mapping[str, Constraint[Any]] = getattr(
        offered.__init__ if inspect.isclass(offered) else offered, "CONSTRAINTS", {}
    )
    return table


def test_every_argument_of_every_public_function_has_its_constraint() -> None:
    assert set(EXEMPT) <= set(OFFERED)
    assert set(EXEMPT_ARGUMENTS) <= set(CHECKED)
    without = {
        f"{name}({argument})"
        for name, offered in CHECKED.items()
        for argument in inspect.signature(offered).parameters
        if argument not in table_of(offered) and argument not in EXEMPT_ARGUMENTS.get(name, {})
    }
    assert without == set()


ARGUMENTS = [(name, argument) for name, offered in CHECKED.items() for argument in table_of(offered)]
# What is sensible for an argument, by the words of its constraint, although it is in the list of nonsense.
SENSIBLE = {
    "a positive number": {"1e300"},
    "a number of at least 0": {"0", "1e300"},
    "a number of more than 1": {"1e300"},
    "a number or 'own'": {"-1", "0", "1e300"},
    "a number from 0 to 1": {"0"},
    "a number or a tensor": {"nan", "-1", "0", "1e300"},
    "a whole number": {"-1", "0"},
    "a whole number of at least 0": {"0"},
    "a word": {"a word", "''"},
    "a text such as 'out in'": {"a word", "''"},
    "a mapping": {"a dict"},
    "a mapping of names to what parameters are": {"a dict"},
    "a positive number, or a mapping of roles to positive numbers": {"1e300", "a dict"},
    "several things": {"[]", "a generator", "claims in a list"},
    "a torch.nn.Module": {"a model"},
    "a torch.optim.Optimizer": {"an optimizer"},
    "a function": {"a model", "a class"},
    "the config of a model, as an object, a mapping, or the path of its file or folder": {"a word", "a dict"},
    "the path of a file": {"a word"},
    "what mssp.plan returns": {"a plan"},
    "what mssp.plan returns, or its JSON": {"a word", "''", "a plan"},
}


def is_sensible(constraint: Constraint[Any], what: str) -> bool:
    if what == "None":
        return constraint.takes_none
    return what in SENSIBLE.get(constraint.what, {"[]"} if constraint.what.startswith("a sequence, each ") else set())


PAIRS = [
    (name, argument, what)
    for name, argument in ARGUMENTS
    for what in NONSENSE
    if not is_sensible(table_of(OFFERED[name])[argument], what)
]


def test_how_much_nonsense_is_tried() -> None:
    """Literal numbers: what is not tried any more has to be taken out of them."""
    assert (len(CHECKED), len(ARGUMENTS), len(PAIRS)) == (106, 470, 7103)


@pytest.mark.parametrize("name", CHECKED)
def test_python_refuses_nonsense(name: str) -> None:
    offered = OFFERED[name]
    for argument, constraint in table_of(offered).items():
        for what in [what for _, other, what in PAIRS if (_, other) == (name, argument)]:
            with pytest.raises(ValueError, match="must be") as refused:
                offered_alone(offered, argument)(NONSENSE[what])
            message = f"{argument} must be {re.escape(constraint.what)}, got [^\n]+"
            part = f"{argument} must be [^\n]+, got [^\n]+"
            assert re.fullmatch(part if "each" in message else message, str(refused.value)), (name, what)


def offered_alone(offered: Any, argument: str) -> Callable[[Any], Any]:
    """Calls with one argument; Python itself would ask for the others, so that checks have to come first."""
    return lambda nonsense: offered(**{argument: nonsense})


# -- flags -------------------------------------------------------------------------------------------------------------

WORDS = ("nonsense", "-1", "nan", "", "1e300")
SIZES = "--target.width 64 --target.expert-width 8 --target.experts 16 --target.active 16 --target.depth 2"
# What a command is given beside the flag in question, so that nothing else is missing.
REST = {
    "demo": [],
    "plan": [*SIZES.split(), "--regime", "II", "--lr", "0.1"],
    "proxy": ["."],
    "explain": ["router"],
    "claims": ["model.py:build"],
    "export": ["nanogpt"],
    "check": ["--widths", "16", "32", "--steps", "2", "--seeds", "1", "--batch", "10", "--device", "cpu"],
    "tune": [],
    "sweep": [],
    "train": [],
    "generate": [],
    "dmft": [],
    "data": ["prepare"],
    "report": [],
    "dispatch": ["table.json"],
}
# Words that a flag may well be, by the words of its constraint.
SENSIBLE_WORDS = {
    "a positive number": {"1e300"},
    "a number of at least 0": {"1e300"},
    "a number of more than 1": {"1e300"},
    "a whole number": {"-1"},
    "a sequence, each a positive number": {"1e300"},
    "a text": set(WORDS),
    "a positive number, or positive numbers by role, as router=2": {"1e300"},
    "a file to write in a folder that is there": {"nonsense", "-1", "nan", "1e300"},
    "a folder, or a name for one in a folder that is there": {"nonsense", "-1", "nan", "1e300"},
    "a folder, or a path at which one can be made": {"nonsense", "-1", "nan", "1e300"},
}
POSITIONAL = {
    "proxy": (".",), "explain": ("router",), "claims": ("model.py:build",), "export": ("nanogpt",),
    "dispatch": (Path("table.json"),), "data": ("prepare",),
}  # fmt: skip
# The words that stand before a flag without a name, if there are others.
BEFORE: dict[tuple[str, str], list[str]] = {("data", "FILE"): ["prepare"]}


def flags() -> Iterator[tuple[str, str, str]]:
    """Command, flag, and what it must be."""
    for name, (command, _) in COMMANDS.items():
        positional: tuple[Any, ...] = POSITIONAL.get(name, ())
        for flag in flags_of(command(*positional)):
            yield name, flag.name, flag.constraint.what


FLAGS = list(flags())
FLAG_PAIRS = [
    (command, flag, word) for command, flag, what in FLAGS for word in WORDS if word not in SENSIBLE_WORDS.get(what, ())
]


def test_every_flag_that_takes_words_has_a_constraint() -> None:
    """Switches take none; a flag without a constraint would hold what tyro reads, whatever that is."""
    assert (len(FLAGS), len(FLAG_PAIRS)) == (240, 1078)
    for name, (command, _) in COMMANDS.items():
        hints = inspect.get_annotations(command, eval_str=False)
        groups = ("ShapeFlags", "RecipeFlags", "HostSizes", "GPTFlags")
        assert all("flags." in hint or hint in groups for hint in hints.values()), name


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_refuse_nonsense(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line: list[str] = []
    monkeypatch.setattr(COMMANDS[command][0], "run", lambda self: pytest.fail(f"accepted: {line}"))
    for _, flag, word in [pair for pair in FLAG_PAIRS if pair[0] == command]:
        words = [word] * (2 if flag.endswith("betas") else 1)
        alone = [*BEFORE.get((command, flag), ()), "--", word]
        line = [command, *REST[command], flag, *words] if flag.startswith("--") else [command, *alone]
        assert main(line) == 2, line
        out, err = capsys.readouterr()
        assert out == "", line
        assert re.fullmatch(f"mssp: error: {re.escape(flag)} must be [^\n]+, got [^\n]+\n", err), (line, err)
    assert list(tmp_path.iterdir()) == []
