"""Our schemes and optimizers keep their contracts, and one with a mistake does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mssp.planning.rules import Rows
from mssp.planning.setting import (
    ADAM,
    ADAMW,
    JIANG,
    MSSP,
    MUP,
    MUP_HEURISTIC,
    NTP,
    OPTIMIZERS,
    SCHEMES,
    SGD,
    SP,
    Optimizer,
    Scheme,
)
from mssp.testing import OptimizerContract, SchemeContract


class TestSGD(OptimizerContract):
    optimizer, torch_optimizer = SGD, torch.optim.SGD


class TestAdam(OptimizerContract):
    optimizer, torch_optimizer = ADAM, torch.optim.Adam


class TestAdamW(OptimizerContract):
    optimizer, torch_optimizer = ADAMW, torch.optim.AdamW


class TestOneOfYours(OptimizerContract):
    """An optimizer that this package does not have: planned as Adam is, and refused where replicas are trained."""

    optimizer = Optimizer(name="lamb", title="LAMB", row="adam", moments=2, eps=1e-6)
    torch_optimizer = None
    schemes = (replace(MSSP, name="mine", optimizers=(optimizer,)),)


class TestMSSP(SchemeContract):
    scheme = MSSP


class TestMuP(SchemeContract):
    scheme = MUP


class TestMuPByShape(SchemeContract):
    scheme = MUP_HEURISTIC


class TestSP(SchemeContract):
    scheme = SP


class TestNTP(SchemeContract):
    scheme = NTP


class TestJiang(SchemeContract):
    scheme = JIANG


def test_all_of_ours_are_tested_here() -> None:
    contracts = [value for name, value in globals().items() if name.startswith("Test") and name != "TestOneOfYours"]
    assert [c.optimizer for c in contracts if issubclass(c, OptimizerContract)] == list(OPTIMIZERS)
    assert [c.scheme for c in contracts if issubclass(c, SchemeContract)] == list(SCHEMES)


def test_a_scheme_without_a_learning_rate_does_not_pass() -> None:
    def rows(role: str) -> Rows:
        return replace(MSSP.rows(role), sgd=None) if role == "router" else MSSP.rows(role)

    contract = SchemeContract()
    contract.scheme = Scheme(name="holes", title="Holes", rows=rows)
    with pytest.raises(ValueError, match="Holes has no learning rate of router for SGD"):
        contract.test_every_role_has_a_rule()


def test_an_optimizer_that_moves_otherwise_does_not_pass() -> None:
    class Another(OptimizerContract):
        optimizer, torch_optimizer = SGD, torch.optim.Adagrad

    with pytest.raises(AssertionError, match="matrix"):
        Another().test_replicas_move_as_the_class_of_torch_does()
