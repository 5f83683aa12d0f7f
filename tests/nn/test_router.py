"""Hand-computed values on small examples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mssp.nn import Router, route

LOG2, LOG3 = math.log(2), math.log(3)
# Sigmoid scores are 2/3, 1/3, 1/2; softmax scores 4/7, 1/7, 2/7.
LOGITS = torch.tensor([[LOG2, -LOG2, 0.0]])


def close(got: Tensor, wanted: list[float] | list[list[float]] | float) -> None:
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=got.dtype), rtol=1e-6, atol=1e-7)


def test_sigmoid_gates() -> None:
    routing = route(LOGITS)
    close(routing.gates, [[2 / 3, 1 / 3, 1 / 2]])
    assert routing.chosen is None
    close(route(LOGITS, inverse_temperature=2.0).gates, [[4 / 5, 1 / 5, 1 / 2]])


def test_softmax_gates() -> None:
    close(route(LOGITS, gate="softmax").gates, [[4 / 7, 1 / 7, 2 / 7]])
    close(route(LOGITS, gate="softmax", inverse_temperature=2.0).gates, [[16 / 21, 1 / 21, 4 / 21]])


def test_top_k_takes_the_largest_and_drops_no_token() -> None:
    routing = route(LOGITS, active=2)
    assert routing.chosen is not None
    assert routing.chosen.tolist() == [[0, 2]]
    close(routing.gates, [[2 / 3, 1 / 2]])
    close(route(LOGITS, active=2, gate="softmax").gates, [[4 / 7, 2 / 7]])
    crowd = route(torch.tensor([[1.0, 0.0, 0.0]]).repeat(1000, 1), active=1)
    assert crowd.chosen is not None
    assert (crowd.chosen == 0).all()
    assert crowd.gates.shape == (1000, 1)


def test_normalised_gates_sum_to_one() -> None:
    close(route(LOGITS, active=2, normalise=True).gates, [[4 / 7, 3 / 7]])
    close(route(LOGITS, active=2, gate="softmax", normalise=True).gates, [[2 / 3, 1 / 3]])
    close(route(LOGITS, normalise=True).gates, [[4 / 9, 2 / 9, 3 / 9]])


def test_noise_changes_the_choice_and_not_the_gate() -> None:
    routing = route(LOGITS, active=1, noise=torch.tensor([[0.0, 9.0, 0.0]]))
    assert routing.chosen is not None
    assert routing.chosen.tolist() == [[1]]
    close(routing.gates, [[1 / 3]])


def test_saturated_gates_are_still_told_apart() -> None:
    routing = route(torch.tensor([[40.0, 50.0, 45.0]]), active=1)
    assert routing.chosen is not None
    assert routing.chosen.tolist() == [[1]]


# Two tokens; the first chooses expert 0, the second expert 2.
PAIR = torch.tensor([[LOG2, -LOG2, 0.0], [-LOG2, 0.0, LOG2]])


def test_load_balancing_loss_by_hand() -> None:
    # Loads 1/2, 0, 1/2. Softmax means: 5/14, 3/14, 6/14; 3 * (5/28 + 6/28) = 33/28.
    close(route(PAIR, active=1, gate="softmax").load_balancing_loss(), 33 / 28)
    # Sigmoid scores over their sum 3/2: 4/9, 2/9, 3/9 and 2/9, 3/9, 4/9; means 1/3, 5/18, 7/18.
    close(route(PAIR, active=1).load_balancing_loss(), 3 * (1 / 2) * (1 / 3 + 7 / 18))
    # Two of three: loads 1/4, 1/4, 1/2.
    close(route(PAIR, active=2).load_balancing_loss(), 3 * ((1 / 3 + 5 / 18) / 4 + (7 / 18) / 2))


def test_load_balancing_loss_is_one_where_routing_is_uniform() -> None:
    close(route(PAIR).load_balancing_loss(), 1.0)
    close(route(torch.eye(4), active=1, gate="softmax").load_balancing_loss(), 1.0)


def test_load_balancing_loss_moves_probabilities_away_from_loaded_experts() -> None:
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.5]], requires_grad=True)
    (gradient,) = torch.autograd.grad(route(logits, active=1).load_balancing_loss(), logits)
    assert (gradient[:, 0] > 0).all()
    assert (gradient[:, 1] < 0).all()


def test_z_loss_by_hand() -> None:
    # Log-sum-exp of log 2, -log 2, 0 is log 7/2 for both tokens.
    close(route(PAIR).z_loss(), math.log(3.5) ** 2)
    close(route(torch.zeros(5, 4), active=2).z_loss(), math.log(4) ** 2)


def test_statistics_by_hand() -> None:
    statistics = route(PAIR, active=1).statistics()
    close(statistics.loads, [0.5, 0.0, 0.5])
    close(statistics.highest, 2 / 3)
    close(statistics.lowest, 1 / 3)
    entropy = -sum(p * math.log(p) for p in (4 / 9, 2 / 9, 3 / 9))
    close(statistics.entropy, entropy)
    relative = route(PAIR, gate="softmax").statistics()
    close(relative.highest, 4 / 7 * 3 / 2)
    close(relative.lowest, 1 / 7 * 3 / 2)


@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
def test_uniform_routing_has_concentration_one_half(gate: str) -> None:
    statistics = route(torch.zeros(3, 8), gate=gate).statistics()
    close(statistics.highest, 0.5)
    close(statistics.lowest, 0.5)
    close(statistics.entropy, math.log(8))
    close(statistics.loads, [1 / 8] * 8)


def test_losses_do_not_depend_on_leading_axes() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    flat, nested = route(logits.flatten(0, 1), active=2), route(logits, active=2)
    close(nested.load_balancing_loss(), flat.load_balancing_loss().item())
    close(nested.z_loss(), flat.z_loss().item())
    close(nested.statistics().loads, flat.statistics().loads.tolist())


def test_routing_is_in_float32_under_autocast_and_with_half_inputs() -> None:
    torch.manual_seed(0)
    router, x = Router(width=64, experts=8, active=2), torch.randn(10, 64)
    with torch.autocast("cpu", torch.bfloat16):
        routing = router(x)
        assert routing.load_balancing_loss().dtype == torch.float32
    assert routing.logits.dtype == routing.gates.dtype == torch.float32
    torch.testing.assert_close(routing.logits, router(x).logits, rtol=0, atol=0)
    assert router.bfloat16()(x.bfloat16()).gates.dtype == torch.float32
    assert route(torch.zeros(2, 4, dtype=torch.bfloat16)).gates.dtype == torch.float32
    assert router.double()(x.double()).gates.dtype == torch.float64


def test_noise_breaks_ties_while_training_only() -> None:
    torch.manual_seed(0)
    router = Router(width=4, experts=8, active=2, noise=1.0)
    torch.nn.init.zeros_(router.weight)
    x = torch.ones(4000, 4)
    loads = router(x).statistics().loads
    assert (loads - 1 / 8).abs().max() < 0.02
    assert (router(x).gates == 0.5).all()
    quiet = router.eval()(x)
    assert quiet.chosen is not None
    assert (quiet.chosen == quiet.chosen[0]).all()


def test_random_bias_chooses_experts_and_is_saved() -> None:
    first, second = (Router(width=4, experts=8, active=2, random_bias=0.1) for _ in range(2))
    second.draw_for_plan(1, "layer")
    assert first.random_bias is not None
    assert second.random_bias is not None
    assert first.random_bias.std() == pytest.approx(0.1, rel=0.6)
    assert not torch.equal(first.random_bias, second.random_bias)
    torch.nn.init.zeros_(first.weight)
    routing = first(torch.ones(3, 4))
    assert routing.chosen is not None
    assert set(routing.chosen[0].tolist()) == set(first.random_bias.topk(2).indices.tolist())
    assert (routing.gates == 0.5).all()
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.random_bias, second.random_bias)


def test_learned_bias_moves_logits() -> None:
    router = Router(width=4, experts=3, bias=True)
    assert router.bias is not None
    with torch.no_grad():
        router.weight.zero_()
        router.bias.copy_(LOGITS[0])
    close(router(torch.randn(1, 4)).gates, [[2 / 3, 1 / 3, 1 / 2]])


def test_scores_that_underflow_still_have_ratios() -> None:
    routing = route(torch.tensor([[-200.0, -200.0 + LOG2, -300.0]]), normalise=True)
    close(routing.gates, [[1 / 3, 2 / 3, 0.0]])
    close(route(torch.full((2, 4), -200.0), active=2, normalise=True).gates, [[0.5, 0.5]] * 2)
    close(route(torch.full((2, 4), -200.0)).load_balancing_loss(), 1.0)


def test_one_token_without_axes_and_no_token_at_all() -> None:
    one = route(LOGITS[0], active=2)
    close(one.load_balancing_loss(), route(LOGITS, active=2).load_balancing_loss().item())
    none = route(torch.zeros(0, 4), active=2)
    for value in (none.load_balancing_loss(), none.z_loss(), none.statistics().entropy):
        assert value.item() == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: route(LOGITS, gate="tanh"), "gate must be one of sigmoid, softmax, got 'tanh'"),
        (lambda: route(LOGITS, active=4), "active = 4 of 3 experts: a token cannot go to more experts than there are"),
        (lambda: route(LOGITS, active=0), "active must be a positive whole number, got 0"),
        (lambda: route(torch.tensor(1.0)), "logits are one number per expert, got a single number"),
        (lambda: Router(8, 4, 8), "active = 8 of 4 experts"),
        (lambda: Router(8, 4, gate="top"), "gate must be one of sigmoid, softmax, got 'top'"),
        (lambda: Router(8, 4, noise=-1.0), "noise must be a number of at least 0, got -1.0"),
        (lambda: route(LOGITS, inverse_temperature=-1.0), "inverse_temperature must be a positive number, got -1.0"),
        (lambda: Router(8, 4, inverse_temperature=0.0), "inverse_temperature must be a positive number, got 0.0"),
        (lambda: Router(8, 4)(torch.ones(2, 9)), r"the router takes inputs of width 8, got \(2, 9\)"),
        (lambda: route(LOGITS / 0, check_finite=True), r"router logits \(1, 3\) hold NaN or infinity"),
        (lambda: Router(2, 3, check_finite=True)(torch.tensor([[1.0, math.nan]])), "hold NaN or infinity"),
    ],
)
def test_mistakes_are_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
