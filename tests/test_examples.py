from __future__ import annotations

import re

import pytest

import hf_trainer
import own_transformer


@pytest.mark.slow
def test_the_example_carries_its_hyperparameters(capsys: pytest.CaptureFixture[str]) -> None:
    own_transformer.main()
    final = [float(found) for found in re.findall(r"-> ([\d.]+),", capsys.readouterr().out)]
    assert len(final) == 3
    assert max(final) < 3.0  # from log(32) = 3.47
    assert final[2] < final[0]


@pytest.mark.slow
def test_the_trainer_of_hugging_face_carries_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    hf_trainer.main()
    shown = capsys.readouterr()
    losses = [(float(a), float(b)) for a, b in re.findall(r"loss ([\d.]+) -> ([\d.]+),", shown.out)]
    assert len(losses) == 2
    assert "MSSP, Regime II, AdamW" in shown.out
    assert [first for first, _ in losses] == [5.545, 5.545]  # log 256: the readout starts at zero
    assert max(last for _, last in losses) < 3.0
    assert losses[1][1] < losses[0][1] + 0.05  # wider is no worse
    assert not shown.err
