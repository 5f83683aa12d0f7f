"""``mssp explain``: one rule, why it is so, and where the paper says it."""

from __future__ import annotations

from dataclasses import dataclass

from mssp.cli import flags
from mssp.planning.explanation import explain
from mssp.planning.setting import MSSP


@dataclass
class ExplainCommand:
    """Explain the rule of one role: what it is, why, and where in the paper."""

    role: flags.Role
    """such as router, expert_in, expert_out, hidden, readout"""
    regime: flags.MaybeRegime = None
    """one regime only"""
    scheme: flags.Scheme = MSSP
    """mssp (default), mup, mup-heuristic, sp, ntp or jiang"""
    json: flags.Switch = False
    """print JSON"""
    markdown: flags.Switch = False
    """print Markdown"""

    def run(self) -> int:
        flags.refuse_both(self, "json", "markdown")
        found = explain(self.role, self.regime, self.scheme)
        print(found.json() if self.json else found.markdown() if self.markdown else found)
        return 0
