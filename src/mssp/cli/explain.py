"""``mssp explain``: one rule, why it is so, and where the paper says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from mssp.cli import flags
from mssp.planning.explanation import explain
from mssp.planning.setting import MSSP


@dataclass
class ExplainCommand:
    """Explain the rule of one role: what it is, why, and where in the paper."""

    role: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ROLE")]
    """such as router, expert_in, expert_out, hidden, readout"""
    regime: flags.Regime = None
    """one regime only"""
    scheme: str = MSSP.name
    """mssp, mup, mup-heuristic, sp, ntp or jiang"""
    json: bool = False
    """print JSON"""
    markdown: bool = False
    """print Markdown"""

    def run(self) -> int:
        if self.json and self.markdown:
            raise ValueError("--json and --markdown exclude each other")
        found = explain(self.role, self.regime, self.scheme)
        print(found.json() if self.json else found.markdown() if self.markdown else found)
        return 0
