"""Our ladders keep the contract of ladders."""

from __future__ import annotations

from mssp.data import load
from mssp.ladders import Ladder, MLPLadder
from mssp.planning.setting import II, III, I
from mssp.testing import LadderContract


class OfMLPs(LadderContract):
    widths = (32, 64)

    def ladder(self) -> Ladder:
        return MLPLadder(self.regime, load("clusters"))


class TestRegimeI(OfMLPs):
    regime = I


class TestRegimeII(OfMLPs):
    regime, no_width = II, 100


class TestRegimeIII(OfMLPs):
    regime, no_width = III, 100
