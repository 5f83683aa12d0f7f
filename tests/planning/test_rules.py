"""Every cell of the prescription, as literal numbers at two shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

import mssp
from mssp import Shape, rule
from mssp.planning.rules import BIASES, GAINS, ROLES
from tests.words import OPTIMIZERS, REGIMES, SCHEMES

A = Shape(width=256, expert_width=64, experts=16, active=8, depth=4, inputs=16)
B = Shape(width=1024, expert_width=16, experts=64, active=16, depth=2, inputs=4)
ZERO = 0.0

# role: (Regime I, II, III); one number where the regimes agree. Worked out by hand from the paper's Table 1.
INIT_STD = {
    "embedding": (0.25, 0.5),
    "hidden": (0.0625, 0.03125),
    "router": ((ZERO, 0.0625, 0.0625), (ZERO, 0.03125, 0.03125)),
    "expert_in": (0.0625, 0.03125),
    "expert_out": ((0.125, 0.5, 0.125), (0.25, 2.0, 0.25)),
    "shared_gate": (ZERO, ZERO),
    "readout": (0.00390625, 0.0009765625),
}
# Where muP differs from MSSP.
INIT_STD_MUP = {
    **INIT_STD,
    "router": ((0.00390625, 0.0625, 0.0625), (0.0009765625, 0.03125, 0.03125)),
    "expert_out": (0.125, 0.25),
    "shared_gate": (0.00390625, 0.0009765625),
}
SGD = {
    "embedding": (256.0, 1024.0),
    "norm": (1024.0, 2048.0),
    "qk_norm": (4.0, 2.0),
    "hidden": (4.0, 2.0),
    "bias": (1024.0, 2048.0),
    "router": ((0.015625, 0.25, 4.0), (0.001953125, 0.125, 2.0)),
    "router_bias": ((4.0, 64.0, 64.0), (2.0, 128.0, 128.0)),
    "expert_in": ((4.0, 0.25, 64.0), (2.0, 0.125, 128.0)),
    "expert_in_bias": ((1024.0, 64.0, 16384.0), (2048.0, 128.0, 131072.0)),
    "expert_out": ((4.0, 16384.0, 64.0), (2.0, 131072.0, 128.0)),
    "expert_out_bias": ((1024.0, 16384.0, 16384.0), (2048.0, 131072.0, 131072.0)),
    "shared_gate": (0.015625, 0.001953125),
    "final_norm": (256.0, 1024.0),
    "readout": (0.00390625, 0.0009765625),
}
# As printed: no factor L in any SGD row, hidden bias 1.
SGD_PRINTED = {
    "embedding": (256.0, 1024.0),
    "norm": (256.0, 1024.0),
    "qk_norm": (1.0, 1.0),
    "hidden": (1.0, 1.0),
    "bias": (1.0, 1.0),
    "router": ((0.00390625, 0.0625, 1.0), (0.0009765625, 0.0625, 1.0)),
    "router_bias": ((1.0, 16.0, 16.0), (1.0, 64.0, 64.0)),
    "expert_in": ((1.0, 0.0625, 16.0), (1.0, 0.0625, 64.0)),
    "expert_in_bias": ((256.0, 16.0, 4096.0), (1024.0, 64.0, 65536.0)),
    "expert_out": ((1.0, 4096.0, 16.0), (1.0, 65536.0, 64.0)),
    "expert_out_bias": ((256.0, 4096.0, 4096.0), (1024.0, 65536.0, 65536.0)),
    "shared_gate": (0.00390625, 0.0009765625),
    "final_norm": (256.0, 1024.0),
    "readout": (0.00390625, 0.0009765625),
}
ADAM = {
    "embedding": (0.0625, 0.25),
    "norm": (1.0, 1.0),
    "qk_norm": (1.0, 1.0),
    "hidden": (0.00390625, 0.0009765625),
    "bias": (1.0, 1.0),
    "router": (0.00390625, 0.0009765625),
    "router_bias": (1.0, 1.0),
    "expert_in": (0.00390625, 0.0009765625),
    "expert_in_bias": (1.0, 1.0),
    "expert_out": (0.015625, 0.0625),
    "expert_out_bias": (1.0, 1.0),
    "shared_gate": (0.00390625, 0.0009765625),
    "final_norm": (1.0, 1.0),
    "readout": (0.00390625, 0.0009765625),
}
EPS = {
    "embedding": (0.00390625, 0.0009765625),
    "norm": (0.0009765625, 0.00048828125),
    "qk_norm": (0.25, 0.5),
    "hidden": (0.0009765625, 0.00048828125),
    "bias": (0.0009765625, 0.00048828125),
    "router": ((0.25, 0.015625, 0.015625), (0.5, 0.0078125, 0.0078125)),
    "router_bias": ((0.25, 0.015625, 0.015625), (0.5, 0.0078125, 0.0078125)),
    "expert_in": ((0.0009765625, 0.015625, 6.103515625e-05), (0.00048828125, 0.0078125, 7.62939453125e-06)),
    "expert_in_bias": ((0.0009765625, 0.015625, 6.103515625e-05), (0.00048828125, 0.0078125, 7.62939453125e-06)),
    "expert_out": (
        (0.0009765625, 6.103515625e-05, 6.103515625e-05),
        (0.00048828125, 7.62939453125e-06, 7.62939453125e-06),
    ),
    "expert_out_bias": (
        (0.0009765625, 6.103515625e-05, 6.103515625e-05),
        (0.00048828125, 7.62939453125e-06, 7.62939453125e-06),
    ),
    "shared_gate": (0.25, 0.5),
    "final_norm": (0.00390625, 0.0009765625),
    "readout": (1.0, 1.0),
}  # fmt: skip


def cells() -> Iterator[tuple[str, str, Shape]]:
    for role in ROLES:
        for regime in REGIMES:
            yield from ((role, regime, shape) for shape in (A, B))


def at(table: Mapping[str, tuple[object, object]], role: str, regime: str, shape: Shape) -> float:
    cell = table[role][0 if shape is A else 1]
    found = cell[REGIMES.index(regime)] if isinstance(cell, tuple) else cell
    assert isinstance(found, float)
    return found


def values(shape: Shape, scheme: str, optimizer: str, regime: str | None, as_printed: bool = False) -> mssp.Plan:
    # The paper's router of Regime I, which starts at zero, is for all experts.
    shape = replace(shape, active=shape.experts) if regime == "I" else shape
    return mssp.plan(
        shape,
        scheme=scheme,
        optimizer=optimizer,
        regime=regime,
        lr=1.0,
        eps=None if optimizer == "sgd" else 1.0,
        readout="scheme",
        as_printed=as_printed,
    )


@pytest.mark.parametrize("scheme", ["mssp", "mup"])
@pytest.mark.parametrize(("role", "regime", "shape"), list(cells()))
def test_every_cell_of_table_1(scheme: str, role: str, regime: str, shape: Shape) -> None:
    adam = values(shape, scheme, "adam", regime).roles[role]
    sgd = values(shape, scheme, "sgd", regime).roles[role]
    printed = values(shape, scheme, "sgd", regime, as_printed=True).roles[role]
    stds = INIT_STD if scheme == "mssp" else INIT_STD_MUP
    std = 1.0 if role in GAINS else ZERO if role in BIASES else at(stds, role, regime, shape)
    assert adam.init_std == sgd.init_std == std
    assert adam.zero == (std == ZERO)
    assert (adam.shared == 1) == (scheme == "mssp" and regime == "III" and role in ("expert_in", "expert_out"))
    assert adam.lr == at(ADAM, role, regime, shape)
    assert adam.eps == at(EPS, role, regime, shape)
    assert sgd.lr == at(SGD, role, regime, shape)
    assert sgd.eps is None
    assert printed.lr == at(SGD_PRINTED, role, regime, shape)


@pytest.mark.parametrize("role", ROLES)
def test_adamw_is_adam(role: str) -> None:
    for scheme, regime in [("mssp", "II"), ("jiang", "III"), ("mup-heuristic", "I"), ("sp", None)]:
        assert rule(role, scheme, regime, "adamw") == rule(role, scheme, regime, "adam")


def test_jiang_is_mup_with_a_small_router_and_one_eps() -> None:
    for role in ROLES:
        jiang, mup = (values(A, scheme, "adam", "III").roles[role] for scheme in ("jiang", "mup"))
        assert jiang.eps == 1.0
        assert jiang.lr == mup.lr
        assert jiang.init_std == (0.00390625 if role == "router" else mup.init_std)
        assert jiang.shared == 0


def test_standard_parameterization() -> None:
    plan = values(A, "sp", "adam", None)
    stds = {"embedding": 0.25, "hidden": 0.0625, "router": 0.0625, "expert_in": 0.0625, "expert_out": 0.125,
            "shared_gate": 0.0625, "readout": 0.0625}  # fmt: skip
    assert {role: plan.roles[role].init_std for role in stds} == stds
    assert {v.lr for v in plan.roles.values()} == {v.eps for v in plan.roles.values()} == {1.0}
    assert plan.multiplier("aggregation") == plan.multiplier("residual") == 1.0


def test_neural_tangent_parameterization() -> None:
    plan = values(A, "ntp", "sgd", None)
    assert {role: v.lr for role, v in plan.roles.items()} == {
        "embedding": 0.0625, "norm": 1.0, "qk_norm": 1.0, "hidden": 0.00390625, "bias": 1.0, "router": 0.00390625,
        "router_bias": 1.0, "expert_in": 0.00390625, "expert_in_bias": 1.0, "expert_out": 0.015625,
        "expert_out_bias": 1.0, "shared_gate": 0.00390625, "final_norm": 1.0, "readout": 0.00390625,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("role", "regime", "init_std", "sgd", "adam", "eps"),
    [
        ("embedding", "II", 0.25, 256.0, 0.0625, 0.00390625),
        ("expert_out", "II", 0.125, 1024.0, 0.015625, 0.0009765625),  # input-like
        ("expert_out", "III", 0.125, 4.0, 0.015625, 0.0009765625),  # matrix-like
        ("expert_in", "II", 0.00390625, 0.015625, 0.00390625, 0.25),  # output-like
        ("expert_in", "I", 0.0625, 4.0, 0.00390625, 0.0009765625),
        ("router", "I", 0.00390625, 0.015625, 0.00390625, 0.25),
        ("router", "II", 0.0625, 4.0, 0.00390625, 0.0009765625),
        ("hidden", "III", 0.0625, 4.0, 0.00390625, 0.0009765625),
        ("norm", "I", 1.0, 1024.0, 1.0, 0.0009765625),
        ("bias", "I", 0.0, 1024.0, 1.0, 0.0009765625),
        ("final_norm", "II", 1.0, 256.0, 1.0, 0.00390625),
        ("readout", "III", 0.00390625, 0.00390625, 0.00390625, 1.0),
        ("shared_gate", "III", 0.00390625, 0.015625, 0.00390625, 0.25),
    ],
)
def test_mup_by_shape(role: str, regime: str, init_std: float, sgd: float, adam: float, eps: float) -> None:
    by_adam = values(A, "mup-heuristic", "adam", regime).roles[role]
    by_sgd = values(A, "mup-heuristic", "sgd", regime).roles[role]
    assert (by_adam.init_std, by_sgd.lr, by_adam.lr, by_adam.eps) == (init_std, sgd, adam, eps)


def test_the_heuristic_is_mup_in_regime_one() -> None:
    for role in ("embedding", "hidden", "router", "expert_in", "expert_out", "norm", "bias", "final_norm", "readout"):
        for optimizer, printed in (("sgd", False), ("sgd", True), ("adam", False)):
            heuristic, mup = (values(A, s, optimizer, "I", printed).roles[role] for s in ("mup-heuristic", "mup"))
            assert (heuristic.init_std, heuristic.lr, heuristic.eps) == (mup.init_std, mup.lr, mup.eps)


def test_a_bias_of_the_readout_is_the_same_at_every_size() -> None:
    """Its gradient is the mean error of a logit. Plan files and tables of roles do not list it."""
    settings = [("mssp", "III", "sgd"), ("mssp", "II", "adam"), ("mup", "III", "adamw"), ("jiang", "III", "adam"),
                ("mup-heuristic", "I", "sgd"), ("sp", None, "adamw"), ("ntp", None, "sgd")]  # fmt: skip
    for scheme, regime, optimizer in settings:
        plan = values(A, scheme, optimizer, regime)
        found = plan.all_roles["readout_bias"]
        assert (found.init_std, found.lr, found.eps, found.weight_decay) == (0, 1, None if optimizer == "sgd" else 1, 0)
        assert "readout_bias" not in plan.roles
        assert "readout_bias" not in plan.json()
    assert rule("readout_bias", "mssp", "III", "sgd").source == "derived"


def test_sources_are_marked() -> None:
    derived = {"qk_norm", "router_bias", "expert_in_bias", "expert_out_bias", "shared_gate"}
    for role in ROLES:
        assert rule(role, "mssp", "III", "adam").source == ("derived" if role in derived else "table")
        corrected = role not in derived | {"embedding", "final_norm", "readout"}
        expected = "derived" if role in derived else "erratum" if corrected else "table"
        assert rule(role, "mssp", "III", "sgd").source == expected
        assert rule(role, "mssp", "III", "sgd", as_printed=True).source == ("derived" if role in derived else "table")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("attention", "mssp", "I", "sgd"), "role must be one of embedding"),
        (("router", "musp", "I", "sgd"), "scheme must be one of mssp"),
        (("router", "mssp", "IV", "sgd"), "regime must be one of I, II, III, any, got 'IV'"),
        (("router", "mssp", "I", "muon"), "optimizer must be one of sgd, adam, adamw, got 'muon'"),
        (("router", "mssp", "I", "lion"), "optimizer must be one of sgd, adam, adamw, got 'lion'"),
        (("router", "mssp", None, "sgd"), "scheme 'mssp' needs a regime"),
        (("router", "ntp", None, "adam"), "scheme 'ntp' is defined for sgd only"),
        (("router", "jiang", "II", "adam"), "scheme 'jiang' is defined for adam and adamw in regime III"),
        (("router", "jiang", "III", "sgd"), "scheme 'jiang' is defined for adam and adamw in regime III"),
    ],
)
def test_what_is_not_covered_is_refused(arguments: tuple[str, str, str | None, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule(*arguments)


def test_every_covered_cell_has_a_rule() -> None:
    count = 0
    for scheme in SCHEMES:
        for regime in (*REGIMES, None):
            for optimizer in OPTIMIZERS:
                try:
                    found = [rule(role, scheme, regime, optimizer) for role in ROLES]
                except ValueError:
                    continue
                count += len(found)
    # mssp, mup, mup-heuristic: 3 regimes x 3 optimizers; sp: 4 x 3; ntp: 4 x 1; jiang: 1 x 2; 14 roles each.
    assert count == 14 * (3 * 9 + 12 + 4 + 2)
