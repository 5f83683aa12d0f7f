"""Our ladders keep the contract of ladders."""

from __future__ import annotations

import pytest

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


class WithAnotherRegime(OfMLPs):
    """Its experts become wider, where it says that they become more."""

    regime = II

    def ladder(self) -> Ladder:
        return MLPLadder(I, load("clusters"))


class ThatIsNeverDeeper(OfMLPs):
    regime = I

    def ladder(self) -> Ladder:
        class Shallow(MLPLadder):
            def deep(self, blocks: int) -> MLPLadder:
                return self

        return Shallow(I, load("clusters"))


def test_mistakes_are_found() -> None:
    with pytest.raises(AssertionError):
        WithAnotherRegime().test_widths_name_shapes_that_grow_as_the_regime_says()
    with pytest.raises(AssertionError):
        ThatIsNeverDeeper().test_deeper_ones_have_the_same_widths()
    with pytest.raises(AssertionError):
        ThatIsNeverDeeper().test_its_words_tell_its_runs_from_others()


def test_what_is_not_said_is_named() -> None:
    class Unsaid(LadderContract):
        pass

    with pytest.raises(TypeError, match=r"abstract method '?ladder"):
        Unsaid()  # type: ignore[abstract]
