"""``mssp explain``: the rule of one role, the reason for it, and where the paper states it."""

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
    regime: flags.MaybeGrowth = None
    """one regime only"""
    scheme: flags.Scheme = MSSP
    """mssp (default), mup, mup-heuristic, sp, ntp or jiang"""
    json: flags.Switch = False
    """print JSON"""
    markdown: flags.Switch = False
    """print Markdown"""

    def run(self) -> int:
        flags.refuse_both(self, "json", "markdown")
        explanation = explain(self.role, self.regime, self.scheme)
        print(explanation.json() if self.json else explanation.markdown() if self.markdown else explanation)
        return 0
