from __future__ import annotations

import mssp
from mssp import Shape
from mssp.planning.rules import ROLES

BASE = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
TARGET = Shape(width=2048, expert_width=1024, experts=64, active=32, depth=8)
PLAN = mssp.plan(TARGET, BASE, lr=4e-3, weight_decay=0.1)


def row(text: str, role: str) -> str:
    [found] = [line for line in text.splitlines() if line.split()[:1] == [role]]
    return " ".join(found.split())


def test_the_table_a_person_wants() -> None:
    text = str(PLAN)
    assert text.startswith("MSSP, Regime III, AdamW\n")
    assert "base     N 256  N_e 128  M 8  K 4  L 8  D 1" in text
    assert "aggregation 0.03125, residual 0.125" in text
    assert row(text, "expert_in") == "expert_in 0.0221 N⁻¹ᐟ² 0.0005 N⁻¹ 1.563e-10 M⁻¹N⁻¹L⁻¹ 0.8 tied"
    assert row(text, "readout") == "readout 0 0.0005 N⁻¹ 1e-08 1 0.8 zero"
    assert row(text, "qk_norm").endswith("derived")
    assert all(row(text, role) for role in ROLES)


def test_plans_of_dense_models_have_no_rows_of_experts() -> None:
    """In text and in Markdown; a plan file has all roles."""
    plan = mssp.plan(Shape(width=1024, depth=16), Shape(width=256, depth=8), lr=4e-3)
    lines = str(plan).splitlines()
    assert lines[:6] == [
        "MSSP, Regime I, AdamW",
        "  base     N 256  L 8  D 1",
        "  target   N 1024  L 16  D 1",
        "  tuned    lr 0.004, eps 1e-08",
        "  forward  residual 0.0625; relative to the base: residual 0.5",
        "  growth   N × 4, L × 2; a dense model: μP over width, 1/L over depth",
    ]
    roles = ["embedding", "norm", "qk_norm", "hidden", "bias", "final_norm", "readout"]
    assert [line.split()[0] for line in lines[9:]] == roles
    assert [line.split()[1] for line in plan.markdown().splitlines() if line.startswith("| ")] == ["role", *roles]
    assert set(plan.roles) == set(ROLES)


def test_a_single_expert_of_another_width_than_the_model_is_printed() -> None:
    one = {"experts": 1, "active": 1, "depth": 2}
    plan = mssp.plan(Shape(width=512, expert_width=1024, **one), Shape(width=256, expert_width=512, **one), lr=4e-3)
    assert "target   N 512  N_e 1024  M 1  K 1  L 2  D 1" in str(plan)
    assert "growth   N × 2, N_e × 2; " in str(plan)
    assert row(str(plan), "expert_out")
    assert "aggregation 3" in str(
        mssp.plan(Shape(width=512, depth=2), Shape(width=256, depth=2), lr=1, aggregation_mult=3)
    )


def test_sgd_has_no_eps_column_and_names_errata() -> None:
    text = str(mssp.plan(TARGET, BASE, optimizer="sgd", lr=0.1))
    assert "eps" not in text
    assert row(text, "hidden") == "hidden 0.0221 N⁻¹ᐟ² 0.1 L erratum"


def test_gradient_scales_are_shown() -> None:
    text = str(mssp.plan(TARGET, BASE, lr=4e-3, grad_scale=True))
    assert row(text, "expert_out") == "expert_out 0.03125 N_e⁻¹ᐟ² 0.0005 N_e⁻¹ 1e-08 64 MNL tied"


def test_markdown_is_a_table() -> None:
    lines = PLAN.markdown().splitlines()
    assert "| role | init std | lr | eps | wd | note |" in lines
    assert "| router | 0.0221 N⁻¹ᐟ² | 0.0005 N⁻¹ | 1.25e-09 M⁻¹L⁻¹ | 0.8 |  |" in lines
    assert sum(line.startswith("| ") for line in lines) == 1 + len(ROLES)


def test_warnings_are_part_of_the_text() -> None:
    import pytest

    with pytest.warns(mssp.PlanWarning):
        plan = mssp.plan(BASE, regime="III", init_std={"readout": 0.1}, lr=1e-3)
    assert "warning: init_std of readout has no effect" in str(plan)
    assert "> **warning:** init_std of readout has no effect" in plan.markdown()


def test_differences() -> None:
    assert not PLAN.diff(PLAN)
    assert str(PLAN.diff(PLAN)) == "no difference"
    other = mssp.plan(TARGET, BASE, lr=4e-3, weight_decay=0.1, scheme="mup")
    found = {path: (here, there) for path, here, there in PLAN.diff(other).entries}
    assert found["scheme"] == ("mssp", "mup")
    assert found["roles.expert_in.tied"] == (True, False)
    assert not any(path.startswith("roles.hidden") for path in found)
    assert "roles.expert_in.tied" in str(PLAN.diff(other))
