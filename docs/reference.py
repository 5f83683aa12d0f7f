"""The two pages that nobody writes: the flags of every command, and the Python API, as Markdown."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from mssp.cli.commands import COMMANDS, main

# Packages with a list of public names.
PACKAGES = (
    "mssp", "mssp.hf", "mssp.hosts", "mssp.nn", "mssp.data", "mssp.replicas", "mssp.dmft", "mssp.sweep", "mssp.store",
    "mssp.train", "mssp.report",
)  # fmt: skip
_COLUMNS, _LONGEST = 100, 100


def commands() -> str:
    """Every command with its own help."""
    lines = ["# Commands", "", "What `mssp COMMAND --help` prints.", "", "| command | what it does |", "|---|---|"]
    lines += [f"| [`mssp {name}`](#mssp-{name}) | {what} |" for name, (_, what) in COMMANDS.items()]
    for name in COMMANDS:
        lines += ["", f"## `mssp {name}` {{#mssp-{name}}}", "", *_help(name)]
    return "\n".join(lines) + "\n"


def _help(name: str) -> Iterator[str]:
    """The help of a command: its text as it is, its groups of flags as tables."""
    printed = io.StringIO()
    wide = {"COLUMNS": str(_COLUMNS), "NO_COLOR": "1"}
    with mock.patch.dict(os.environ, wide), contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([name, "--help"])
    usage, _, rest = re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue()).partition("\n\n")
    if not usage.startswith("usage:"):
        raise ValueError(f"mssp {name} --help does not begin with its usage")
    yield from ("```", *(line.strip() for line in usage.splitlines()), "```", "")
    rows: list[list[str]] = []  # of one group: flag and text
    for line in [*rest.splitlines(), " end"]:
        content, indent = line.strip(), len(line) - len(line.lstrip())
        if not content.strip("-"):
            continue
        if indent == 0:
            yield from (content, "")
        elif indent == 1:  # a group's name: the one before is complete
            if rows:
                yield from ("| flag | what |", "|---|---|", *(f"| `{flag}` | {what.strip()} |" for flag, what in rows))
            rows = []
            yield from ("", f"**{content}**", "") if line != " end" else ()
        elif indent > 2:  # goes on
            rows[-1][1] += f" {content}"
        elif content.startswith("-") or "  " in content:
            rows.append([*re.split(r"\s{2,}", content.replace("|", r"\|"), maxsplit=1), ""][:2])
        else:
            yield from (content, "")


def api() -> str:
    """Every public name: signature, docstring, where it is defined."""
    names = {package: list(_public(import_module(package))) for package in PACKAGES}
    known = {f"{package}.{name}" for package, found in names.items() for name in found}
    lines = ["# Python API", ""]
    for package, found in names.items():
        module = import_module(package)
        lines += [f"## `{package}` {{#{package}}}", "", *_markdown(inspect.getdoc(module) or "", package, known), ""]
        lines += [", ".join(f"[`{name}`](#{package}.{name})" for name in found), ""]
        for name in found:
            lines += [*_entry(package, name, getattr(module, name), known), ""]
    return "\n".join(lines) + "\n"


def _public(module: ModuleType) -> Iterator[str]:
    named = getattr(module, "__all__", None)
    for name in sorted(vars(module) if named is None else named, key=str.lower):
        thing = getattr(module, name)
        own = named is not None or (
            not name.startswith("_") and callable(thing) and getattr(thing, "__module__", "") == module.__name__
        )
        if own and not isinstance(thing, ModuleType):
            yield name


def _entry(package: str, name: str, thing: Any, known: set[str]) -> Iterator[str]:
    path = f"{package}.{name}"
    yield from (f"### `{path}` {{#{path}}}", "")
    if not callable(thing):
        yield from (f"`{name} = {thing!r}`", "")
        return
    yield from ("```python", _signature(name, thing), "```", "", *_markdown(_doc(thing), package, known), "")
    thing = inspect.unwrap(thing)
    file = Path(inspect.getsourcefile(thing) or "")
    repository = Path(__file__).resolve().parent.parent
    yield f"[{thing.__module__}](../{file.relative_to(repository).as_posix()}#L-{inspect.getsourcelines(thing)[1]})"
    if inspect.isclass(thing):
        for member, found in sorted(vars(thing).items()):
            function = getattr(found, "__func__", found.fget if isinstance(found, property) else found)
            if member.startswith("_") or not inspect.isfunction(function) or not inspect.getdoc(function):
                continue
            shown = f"{member}  # property" if isinstance(found, property) else _signature(member, function, bound=True)
            yield from ("", "```python", shown, "```", "", *_markdown(inspect.getdoc(function) or "", package, known))


def _doc(thing: Any) -> str:
    """Its docstring; of a dataclass without one, Python makes up a signature, which is shown already."""
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return "" if text is None or text.startswith(f"{thing.__name__}(") else inspect.cleandoc(text)


class _Bare(str):
    """An annotation that prints without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _signature(name: str, thing: Any, bound: bool = False) -> str:
    try:
        found = inspect.signature(thing)
    except ValueError:  # an exception, or another class whose constructor is not Python's
        return f"{name}(...)"
    parts: list[str] = []
    starred = False
    for each in list(found.parameters.values())[1 if bound else 0 :]:
        if each.kind is each.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred = starred or each.kind in (each.VAR_POSITIONAL, each.KEYWORD_ONLY)
        parts.append(str(each.replace(annotation=_bare(each.annotation))))
    returned = found.empty if inspect.isclass(thing) else _bare(found.return_annotation)
    arrow = "" if returned is found.empty else f" -> {inspect.formatannotation(returned)}"
    text = f"{name}({', '.join(parts)}){arrow}"
    if len(text) > _LONGEST:
        inner = "".join(f"    {part},\n" for part in parts)
        text = f"{name}(\n{inner}){arrow}"
    return re.sub(r" at 0x\w+", "", text)


def _bare(annotation: Any) -> Any:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def _markdown(text: str, package: str, known: set[str]) -> Iterator[str]:
    """A docstring as Markdown: examples as code, ``Args:`` as a list, names as links."""

    def name(match: re.Match[str]) -> str:
        short = match[1].lstrip("~")
        path = next((path for path in (short, f"{package}.{short}", f"mssp.{short}") if path in known), None)
        return f"`{short}`" if path is None else f"[`{short}`](#{path})"

    example = arguments = False
    for given in text.splitlines():
        line = given
        if line.startswith(">>>") and not example:
            example = True
            yield from ("", "```pycon")
        elif example and not line.strip():
            example = False
            yield "```"
        if line in ("Args:", "Returns:", "Raises:"):
            arguments = True
            yield from ("", f"*{line}*", "")
            continue
        arguments = arguments and (line.startswith(" ") or not line.strip())
        if not example:
            line = re.sub(r"``(.+?)``", r"`\1`", re.sub(r":\w+:`(.+?)`", name, line))
            line = re.sub(r"^    (\S[^:`]*): ", r"- `\1`: ", line) if arguments else line
        yield line
    if example:
        yield "```"
