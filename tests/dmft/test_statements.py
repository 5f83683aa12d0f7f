"""What the paper says about the limits, held against solutions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mssp.dmft import example, solve
from mssp.dmft.comparison import trained
from mssp.dmft.constants import constants
from mssp.dmft.observables import averaged, equal_times, relative
from mssp.dmft.run import Samples
from mssp.dmft.solver import march

CPU = torch.device("cpu")


def test_regime_one_with_softmax_and_nothing_to_break_the_symmetry_routes_uniformly_for_ever() -> None:
    of = example("I", "mssp", gate="softmax", inputs=2, steps=8)
    limit = solve(of, samples=4_000, solves=2)
    assert not limit.mean["router_gradient"].any()
    assert not limit.mean["router_mean"].any()
    assert limit.mean["loss"][-1] < 0.9 * limit.mean["loss"][0]  # while it learns
    # Finite networks come to it: the spread of their logits vanishes.
    networks = [averaged(trained(of, width, range(40), CPU)).mean for width in (16, 64, 256)]
    spread = [each["router_variance"][-1].mean() for each in networks]
    assert spread[1] < 0.4 * spread[0]
    assert spread[2] < 0.4 * spread[1]


def test_regime_one_with_sigmoid_learns_one_gate_for_all_experts() -> None:
    limit = solve(example("I", "mssp", inputs=2, steps=8), samples=4_000, solves=2)
    assert not limit.mean["router_variance"].any()
    assert np.abs(limit.mean["router_mean"][-1]).min() > 0.001


def test_regime_two_under_mup_loses_what_the_initial_experts_put_out_and_mssp_keeps_it() -> None:
    limits = {
        scheme: solve(example("II", scheme, inputs=2, steps=6, readout="mup"), samples=4_000, solves=2)
        for scheme in ("mssp", "mup")
    }
    first = {scheme: np.trace(equal_times(limit.mean["phi3"], 2)[0]) for scheme, limit in limits.items()}
    assert first["mup"] == 0
    assert first["mssp"] == pytest.approx(np.trace(limits["mssp"].mean["phi2"][0]))
    # Nothing comes back through the initial experts either: without what was learned, no gradient.
    back = {scheme: np.trace(limit.mean["g2"][0]) for scheme, limit in limits.items()}
    assert back["mup"] == 0
    assert back["mssp"] > 0.01


def test_finite_networks_under_mup_lose_it_with_the_number_of_experts() -> None:
    of = example("II", "mup", inputs=2, steps=1)
    sizes = [np.trace(averaged(trained(of, width, range(40), CPU)).mean["phi3"][:2, :2]) for width in (32, 128)]
    assert sizes[1] / sizes[0] == pytest.approx(0.25, rel=0.15)


def test_mup_from_a_zero_readout_has_a_trivial_limit_in_regimes_two_and_three() -> None:
    for regime in ("II", "III"):
        limit = solve(example(regime, "mup", readout="zero", inputs=2, steps=4), samples=4_000, solves=2)
        assert not limit.mean["f"].any()
        assert any("trivial" in warning for warning in limit.warnings)


def test_regime_three_under_mssp_needs_the_process_that_experts_share() -> None:
    """Without the level between experts and network, the equations are those of experts that start apart."""
    of = example("III", "mssp", inputs=2, steps=10, readout="mup")
    networks = averaged(trained(of, 96, range(80), CPU)).mean
    right = constants(of)
    assert right.tied
    samples = Samples(features=8_000, experts=24, units=2_000)
    apart = {}
    for tied in (True, False):
        found = march(of, replace(right, tied=tied), samples, seed=0, device=CPU).observables
        apart[tied] = {name: relative(found[name] - networks[name], networks[name]) for name in ("f", "phi3", "g1")}
    assert max(apart[True].values()) < 0.12
    assert min(apart[False].values()) > 0.3
