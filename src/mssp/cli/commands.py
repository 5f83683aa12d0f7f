"""The command line: one dataclass per command, and one line of text for every mistake of a user.

A command is a dataclass whose fields are its flags and whose ``run`` returns the exit code: 0 for success, 1 for a
failed verdict. :func:`main` adds 2 for what the user can mend, 3 for a mistake of the library, 130 for Ctrl-C, and 143
for SIGTERM.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Annotated, Any, Union

import tyro

from mssp._environment import __version__
from mssp.cli import flags
from mssp.cli.check import CheckCommand
from mssp.cli.claims import ClaimsCommand
from mssp.cli.data import DataCommand
from mssp.cli.demo import DemoCommand
from mssp.cli.dispatch import DispatchCommand
from mssp.cli.dmft import DmftCommand
from mssp.cli.encoding import any_encoding
from mssp.cli.explain import ExplainCommand
from mssp.cli.export import ExportCommand
from mssp.cli.generate import GenerateCommand
from mssp.cli.plan import PlanCommand
from mssp.cli.proxy import ProxyCommand
from mssp.cli.report import ReportCommand
from mssp.cli.sweep import SweepCommand
from mssp.cli.train import TrainCommand
from mssp.cli.tune import TuneCommand

# In the order of the help page, each with its line there.
COMMANDS = {
    "demo": (DemoCommand, "see the point in two minutes: one small model, grown two ways"),
    "proxy": (ProxyCommand, "the small model to tune for the large one that you want"),
    "plan": (PlanCommand, "carry tuned hyperparameters from a small model to a large one"),
    "explain": (ExplainCommand, "one rule: what it is, why, and where the paper says it"),
    "claims": (ClaimsCommand, "draft what the parameters of your own model are"),
    "export": (ExportCommand, "a plan for torchtitan, Megatron, OLMo-core or your own loop"),
    "check": (CheckCommand, "does every term scale as the theory says? with a verdict"),
    "tune": (TuneCommand, "tune the multipliers of a small model"),
    "sweep": (SweepCommand, "does the best learning rate stay as the model grows?"),
    "train": (TrainCommand, "train a Transformer MoE by a plan, and go on wherever it stopped"),
    "generate": (GenerateCommand, "go on with a text by a model that was trained here"),
    "dmft": (DmftCommand, "what models grow to: the limit of infinite size"),
    "data": (DataCommand, "text as tokens: prepare, check and show token files"),
    "report": (ReportCommand, "everything that was found, on one page"),
    "dispatch": (DispatchCommand, "which way of computing experts is the fastest here"),
}
_CONFIG = (tyro.conf.FlagCreatePairsOff,)
_REPORT_IT = "This is a mistake of mssp, not yours: please report it with the lines above and your command"
_LONGEST = 500  # characters of a line that says what is wrong
_DESCRIPTION = "Scale Mixture-of-Experts models without re-tuning them. Start with mssp demo."


def main(arguments: Sequence[str] | None = None) -> int:
    with contextlib.nullcontext() if sys.stdout is not None else open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stdout or nowhere  # closed by the caller, who wants no output
        with any_encoding(), _ending_by_sigterm():
            return _run(sys.argv[1:] if arguments is None else arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        command = _parse(arguments)
        flags.check(command)
        code = int(command.run())
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as stop:
        how_to_go_on = "; ".join(getattr(stop, "__notes__", ())) or "run the same command again"
        print(f"mssp: stopped: {how_to_go_on}", file=sys.stderr)
        return 143 if isinstance(stop, _SigtermError) else 130  # the exit codes that shells give to SIGTERM and Ctrl-C
    except OSError as error:
        if error.errno == errno.EPIPE and not error.filename:
            sys.stdout = None  # it went to a program that has ended, such as head: nothing more can be printed
            return 0
        return _complain(f"{error.filename or 'the output'}: {error.strerror}" if error.errno else str(error))
    except ValueError as error:
        return _complain(str(error))
    except Exception as error:
        traceback.print_exc()
        print(f"mssp: internal error: {type(error).__name__}. {_REPORT_IT}", file=sys.stderr)
        return 3


class _SigtermError(KeyboardInterrupt):
    """SIGTERM, by which schedulers and containers end a program, stops a command as Ctrl-C does."""


@contextlib.contextmanager
def _ending_by_sigterm() -> Iterator[None]:
    """Lets a command that SIGTERM ends, in a block, give back what it holds. A second SIGTERM ends it at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise _SigtermError

    # Other programs may call `main`, in a thread or with a handler of their own.
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _complain(message: str) -> int:
    """Say what is wrong in one line. Names and words of a user stand in it: they are escaped, and may be very long."""
    line = " ".join(message.split())
    line = "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST - 100]}…{line[-100:]}"
    print(f"mssp: error: {line}", file=sys.stderr)
    return 2


def _parse(arguments: Sequence[str]) -> Any:
    """The command that the words ask for; tyro's messages, which stand in boxes, become a ValueError of one line."""
    if arguments and arguments[0] == "--version":
        print(f"mssp {__version__}")
        raise SystemExit(0)
    if not arguments or arguments[0] not in (*COMMANDS, "-h", "--help"):
        problem = f"unknown command {arguments[0]!r}" if arguments else "no command given"
        raise ValueError(f"{problem}: use one of {', '.join(COMMANDS)} (mssp --help)")
    boxed_message = io.StringIO()
    try:
        with contextlib.redirect_stderr(boxed_message):
            if arguments[0] in COMMANDS:
                command, _ = COMMANDS[arguments[0]]
                return tyro.cli(command, prog=f"mssp {arguments[0]}", args=arguments[1:], config=_CONFIG)
            listed = [
                Annotated[command, tyro.conf.subcommand(name, description=description)]
                for name, (command, description) in COMMANDS.items()
            ]
            commands: Any = Union[tuple(listed)]  # noqa: UP007
            return tyro.cli(commands, prog="mssp", description=_DESCRIPTION, args=arguments)
    except SystemExit as exit_:
        if not exit_.code:  # after --help
            raise
        raise ValueError(_in_one_line(boxed_message.getvalue())) from None


def _in_one_line(boxed: str) -> str:
    """The sentence inside one of tyro's boxes, with its suggestion if there is one.

    >>> _in_one_line("╭─ Value error ────╮\\n│ Error parsing -l: │\\n│ must be a number. │\\n╰───────────────────╯")
    '-l: must be a number'
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", boxed)
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
