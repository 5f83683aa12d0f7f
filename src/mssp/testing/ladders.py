"""The contract of a ladder: each width is a whole model that trains on the ladder's data under a plan for its shape."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from mssp.ladders.ladder import Ladder
from mssp.planning.growth import infer
from mssp.planning.plans import Plan, plan
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.setting import MUPS_OWN, SGD, Regime
from mssp.planning.shape import Shape
from mssp.replicas.lockstep import Lockstep
from mssp.replicas.program import Replica
from mssp.replicas.training import Schedule


class LadderContract(ABC):
    """A ladder: inherit it, and say what is below.

    Attributes:
        regime: how it grows.
        widths: two of its widths, the smaller first.
        no_width: one that it does not have; None where it has all.
    """

    regime: Regime
    widths: Sequence[int]
    no_width: int | None = None

    @abstractmethod
    def ladder(self) -> Ladder:
        """A new one, each time."""

    def _plan(self, shape: Shape) -> Plan:
        with without_plan_warnings():
            return plan(shape, regime=self.regime.name, optimizer=SGD.name, readout=MUPS_OWN, lr=0.01)

    def test_widths_name_shapes_that_grow_as_the_regime_says(self) -> None:
        small, large = (self.ladder().shape(width) for width in self.widths)
        assert [small.width, large.width] == list(self.widths)
        assert infer(small, large) is self.regime
        if self.no_width is not None:
            with pytest.raises(ValueError, match=str(self.no_width)):
                self.ladder().shape(self.no_width)

    def test_programs_take_plans_for_their_own_width(self) -> None:
        ladder = self.ladder()
        small, large = self.widths
        ladder.program(small).check(self._plan(ladder.shape(small)))
        with pytest.raises(ValueError, match="plan"):
            ladder.program(small).check(self._plan(ladder.shape(large)))

    def test_it_trains_on_its_data(self) -> None:
        ladder = self.ladder()
        lockstep = Lockstep(ladder.program(self.widths[0]), [Replica(self._plan(ladder.shape(self.widths[0])))])
        feed = ladder.feed(torch.device("cpu"))
        for x, targets in feed.batches(lockstep.seeds, Schedule(steps=2, batch=4)):
            assert lockstep.step(x, targets).isfinite().all()

    def test_deeper_ones_have_the_same_widths(self) -> None:
        width = self.widths[0]
        shallow, deep = (self.ladder().deep(blocks).shape(width) for blocks in (1, 3))
        assert deep.depth == 3 * shallow.depth
        assert replace(deep, depth=shallow.depth) == shallow

    def test_its_words_tell_its_runs_from_others(self) -> None:
        ladder = self.ladder()
        assert ladder.name
        assert json.loads(json.dumps(ladder.words())) == ladder.words()
        assert ladder.words() == self.ladder().words()
        assert ladder.deep(2).words() != ladder.deep(3).words()
