"""No family of transformers is left out: each that its code has is planned, or refused for a reason."""

from __future__ import annotations

import re

import pytest
from family_table import PAGE, page

import mssp.hf
from mssp.hf.meta import on_meta
from tests.hf.families import NOT_YET, PLANNED, REFUSED
from tests.hf.families.found import found
from tests.hf.tiny_models import TARGET, config_of


def test_every_family_of_transformers_is_planned_or_refused() -> None:
    known = [*PLANNED, *REFUSED, *NOT_YET]
    assert len(known) == len(set(known))
    assert set(known) == set(found())


def test_refusals_say_why() -> None:
    for family, entry in REFUSED.items():
        model = on_meta(config_of(family, TARGET))
        with pytest.raises(ValueError, match=re.escape(entry.message)) as caught:
            mssp.hf.adapt(model)
        assert "\n" not in str(caught.value)
        assert "not understood" not in str(caught.value)  # it is in the model, and not that a name is missing here


def test_the_page_of_all_families_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python docs/family_table.py"
