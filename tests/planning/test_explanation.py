from __future__ import annotations

import json

import pytest

from mssp.planning.explanation import REASONS, explain
from mssp.planning.rules import RARE_ROLES, ROLES
from tests.words import SCHEMES


def test_every_role_has_a_reason() -> None:
    assert set(REASONS) == {*ROLES, *RARE_ROLES}


def test_one_regime() -> None:
    text = str(explain("expert_out", "II"))
    assert "M¹ᐟ²N_e⁻¹ᐟ² (μP: N_e⁻¹ᐟ²)" in text
    assert "MNL (printed: MN)" in text
    assert "Regime III" not in text.split("where", maxsplit=1)[0]
    assert "where  Table 1, rows Expert Layer 2" in text


def test_all_regimes() -> None:
    found = explain("router")
    assert found.header == ["MSSP", "Regime I", "Regime II", "Regime III", "any growth"]
    assert found.rows[0] == ["init std", "0 (μP: N⁻¹)", "N⁻¹ᐟ²", "N⁻¹ᐟ²", "N⁻¹ᐟ² min(1, n⁻¹ᐟ²k¹ᐟ²)"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("role", [*ROLES, *RARE_ROLES])
def test_everything_can_be_explained(role: str, scheme: str) -> None:
    found = explain(role, scheme=scheme)
    assert found.what
    assert found.why
    assert json.loads(found.json())["rules"]["init std"]
    assert found.markdown().count("|") > 8


def test_what_is_not_covered_is_refused() -> None:
    with pytest.raises(ValueError, match="role must be one of embedding"):
        explain("gate")
    with pytest.raises(ValueError, match="scheme 'jiang' is defined for adam and adamw in regime III"):
        explain("router", "I", "jiang")


def test_other_schemes_cite_their_own_place() -> None:
    assert "abc-parameterizations" in explain("router", scheme="sp").where
    assert "arXiv 2601.20205" in explain("router", scheme="jiang").where
