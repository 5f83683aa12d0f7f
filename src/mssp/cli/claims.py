"""``mssp claims``: a draft of what the parameters of a model are, for a model that a function builds."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mssp.cli import flags

_BUILDER = "a function or a class that is called without arguments and gives a torch.nn.Module"


@dataclass
class ClaimsCommand:
    """Draft the claims of your own model: which role each of its parameters has, as Python to paste.

    Every line has its reason. Lines that you have to decide are comments, marked DECIDE. The model may be built on the
    meta device, without memory.
    """

    builder: flags.Builder
    """a function that builds the model, as model.py:build or package.model:build"""

    def run(self) -> int:
        source, _, name = self.builder.rpartition(":")
        with _importing_from(source), contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no draft
            model = _built(source, name)
        from mssp.hf.suggestions import DECIDE, suggest_claims

        suggestions = suggest_claims(model)
        print(suggestions)
        if count := len(suggestions.undecided):
            lines = "1 line needs" if count == 1 else f"{count} lines need"
            print(f"mssp: {lines} a decision, of {len(suggestions.entries)}: marked {DECIDE}", file=sys.stderr)
        return 0


@contextlib.contextmanager
def _importing_from(source: str) -> Iterator[None]:
    """The file's folder first on the path, or the working folder for a module, as Python has it for scripts."""
    before = list(sys.path)
    sys.path.insert(0, str(Path(source).absolute().parent) if _is_file(source) else str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def _is_file(source: str) -> bool:
    return source.endswith(".py")


def _built(source: str, name: str) -> Any:
    """The model that the builder gives. What the user's code raises is told in one line that names the file."""
    from torch import nn

    if _is_file(source) and not Path(source).is_file():
        raise ValueError(f"{source}: there is no such file")
    if not _is_file(source) and not _is_there(source):
        raise ValueError(f"there is no module {source!r} on Python's path or in this folder; a file ends in .py")
    with _told_in_one_line(source, "importing it"):
        module = _loaded(Path(source)) if _is_file(source) else importlib.import_module(source)
    builder = getattr(module, name, None)
    if builder is None:
        raise ValueError(f"{source} has no {name!r}: name {_BUILDER}{_offered(module)}")
    if isinstance(builder, nn.Module):
        return builder
    if not callable(builder) or (needed := _needed(builder)):
        but = f"needs {', '.join(needed)}" if callable(builder) else "is no function"
        raise ValueError(f"{name} of {source} {but}: name {_BUILDER}")
    with _told_in_one_line(source, f"{name}()"):
        model = builder()
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name}() of {source} gave a {type(model).__name__}: name {_BUILDER}")
    return model


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a package on the way is none, or the name is no module's
        return False


def _loaded(path: Path) -> ModuleType:
    """The module in a file, under the file's name where no other module has it."""
    name = path.stem if path.stem not in sys.modules else f"model in {path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def _offered(module: ModuleType) -> str:
    """The functions and classes that a file defines itself, to choose from."""
    found = [name for name, each in vars(module).items() if callable(each) and each.__module__ == module.__name__]
    return f"; it has {', '.join(found)}" if found else ""


def _needed(builder: Any) -> list[str]:
    """The arguments that a builder cannot do without."""
    try:
        parameters = inspect.signature(builder).parameters.values()
    except (TypeError, ValueError):  # a function of C, which says nothing
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


@contextlib.contextmanager
def _told_in_one_line(source: str, what: str) -> Iterator[None]:
    """Errors of the user's code become a ValueError with the last line of it that they came through."""
    try:
        yield
    except (Exception, SystemExit) as error:
        ours = (str(Path(__file__)), "<frozen ")
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if not frame.filename.startswith(ours) and _is_by(frame.filename, source)]
        line = (
            f", line {last[-1].lineno}" if last else f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        )
        raise ValueError(f"{source}{line}: {what} raised {type(error).__name__}: {error}") from error


def _is_by(filename: str, source: str) -> bool:
    """Whether a line of code is of the file, or of the module's."""
    name = Path(source).name if _is_file(source) else f"{source.rpartition('.')[2]}.py"
    return Path(filename).name == name
