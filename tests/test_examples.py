from __future__ import annotations

import re

import pytest

import own_transformer


@pytest.mark.slow
def test_the_example_carries_its_hyperparameters(capsys: pytest.CaptureFixture[str]) -> None:
    own_transformer.main()
    final = [float(found) for found in re.findall(r"-> ([\d.]+),", capsys.readouterr().out)]
    assert len(final) == 3
    assert max(final) < 3.0  # from log(32) = 3.47
    assert final[2] < final[0]
