"""The command line: one dataclass per command, one line per mistake.

A command is a dataclass whose fields are its flags and whose ``run`` returns the exit code: 0 for success, 1 for a
failed verdict, 2 for input that makes no sense.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro

from mssp import __version__
from mssp.cli.check import CheckCommand
from mssp.cli.demo import DemoCommand
from mssp.cli.dispatch import DispatchCommand
from mssp.cli.dmft import DmftCommand
from mssp.cli.explain import ExplainCommand
from mssp.cli.export import ExportCommand
from mssp.cli.plan import PlanCommand
from mssp.cli.report import ReportCommand
from mssp.cli.sweep import SweepCommand
from mssp.cli.tune import TuneCommand

_COMMANDS = {
    "plan": (PlanCommand, "carry tuned hyperparameters from a small model to a large one"),
    "explain": (ExplainCommand, "one rule: what it is, why, and where the paper says it"),
    "export": (ExportCommand, "a plan as torchtitan, Megatron-core, OLMo-core or a nanoGPT-style loop takes it"),
    "tune": (TuneCommand, "tune multipliers on a small model, by the paper's full grid or cheaper"),
    "sweep": (SweepCommand, "does the best learning rate stay as the model grows? measured, for each scheme"),
    "check": (CheckCommand, "does every term of the dynamics scale as the theory says? measured, with a verdict"),
    "dmft": (DmftCommand, "solve the limit that models grow to: loss, kernels, router, with finite models beside it"),
    "report": (ReportCommand, "everything that was found, on one page that needs nothing else"),
    "dispatch": (DispatchCommand, "measure which way of computing experts is the fastest on this machine"),
    "demo": (DemoCommand, "plan a model, train it at three sizes, see the hyperparameters carry over"),
}
_CONFIG = (tyro.conf.FlagCreatePairsOff,)
_DESCRIPTION = "Scale Mixture-of-Experts models without re-tuning them."


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return int(_parse(sys.argv[1:] if arguments is None else arguments).run())
    except KeyboardInterrupt:
        return 130  # as shells have it
    except BrokenPipeError:  # the reader has seen enough
        sys.stdout = None
        return 0
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:
        return _complain(str(error))


def _complain(message: str) -> int:
    print(f"mssp: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _parse(arguments: Sequence[str]) -> Any:
    """Flags to a command; tyro's framed messages become a ValueError of one line."""
    if arguments and arguments[0] == "--version":
        print(f"mssp {__version__}")
        raise SystemExit(0)
    if not arguments or arguments[0] not in (*_COMMANDS, "-h", "--help"):
        given = f"unknown command {arguments[0]!r}" if arguments else "no command given"
        raise ValueError(f"{given}: use one of {', '.join(_COMMANDS)} (mssp --help)")
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            if arguments[0] in _COMMANDS:
                command, _ = _COMMANDS[arguments[0]]
                return tyro.cli(command, prog=f"mssp {arguments[0]}", args=arguments[1:], config=_CONFIG)
            listed = [Annotated[c, tyro.conf.subcommand(name, description=d)] for name, (c, d) in _COMMANDS.items()]
            commands: Any = Union[tuple(listed)]  # noqa: UP007
            return tyro.cli(commands, prog="mssp", description=_DESCRIPTION, args=arguments)
    except SystemExit as exit_:
        if not exit_.code:
            raise
        raise ValueError(_condensed(complaint.getvalue())) from None


def _condensed(framed: str) -> str:
    """The sentence inside one of tyro's boxes, with its suggestion if there is one.

    >>> _condensed("╭─ Value error ────╮\\n│ Error parsing -l: │\\n│ must be a number. │\\n╰───────────────────╯")
    '-l: must be a number'
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", framed)
    lines = [line.strip(" │╭╮╰╯─") for line in plain.splitlines()][1:]  # the first is the box's title
    sections: list[list[str]] = [[]]
    for line in lines:
        if re.search(r"\w", line):
            sections[-1].append(line)
        elif sections[-1]:
            sections.append([])
    sentence = " ".join(sections[0]).rstrip(".").removeprefix("Error parsing ")
    suggestion = re.search(r"Perhaps you meant: (--[\w.-]+)", " ".join(" ".join(part) for part in sections[1:]))
    return sentence + (f"; perhaps you meant {suggestion[1]}" if suggestion else "")
