"""Where gradients leave the range of number formats, worked out by hand.

fp16 ends at 2^-14, bf16 at 2^-126, and squares are below float32's 2^-126 for numbers below 2^-63.
"""

from __future__ import annotations

from typing import Any

import jsonschema
import numpy as np
import pytest

from mssp.coordcheck.numerics import as_json, lines, ranges
from mssp.coordcheck.result import Check
from mssp.coordcheck.series import Numbers
from tests.coordcheck.synthetic import law, series, theory
from tests.coordcheck.test_result import SCHEMA

FLAT = (0.0, 0.0, 0.0)


def gradient(at_256: float, power: float, start: int = 1) -> Numbers:
    return law(power, factor=at_256 / 256**power, start=start, spread=FLAT)


def checked(values: dict[str, Numbers], **options: Any) -> Check:
    return Check.of(series(values), theory(**options))


GRADIENTS = {
    "gradient/expert_in": gradient(2.0**-10, -1.0),
    "gradient/expert_out": gradient(2.0**-10, -2.0),
    "gradient/readout": gradient(0.5, 0.0, start=0),
    "gradient/router": gradient(2.0**-20, -1.0),
    "effective/expert_in": law(0.0, start=2),
}


def test_sizes_at_which_a_format_is_left() -> None:
    gradients = {each.role: each for each in ranges(checked(GRADIENTS))}
    assert list(gradients) == ["expert_out", "expert_in", "router", "readout"]  # the fastest falling first
    out = gradients["expert_out"]
    assert (out.exponent, out.eps) == (-2.0, None)
    assert out.rms == pytest.approx(2.0**-10)
    # 2^-10 (N/256)^-2 = 2^-14 at N = 4 · 256; 2^-126 at 2^58 · 256; 2^-63 at 2^26.5 · 256.
    assert out.leaves == {
        "fp16": pytest.approx(1024.0), "bf16": pytest.approx(2.0**66), "fp32 squares": pytest.approx(2.0**34.5)
    }  # fmt: skip
    assert gradients["expert_in"].leaves["fp16"] == pytest.approx(16 * 256)
    assert gradients["expert_in"].leaves["fp32 squares"] == pytest.approx(2.0**61)
    assert gradients["router"].leaves["fp16"] == 0.0  # it has left
    assert gradients["readout"].leaves["fp16"] == np.inf  # it does not fall


def test_the_theory_extrapolates_and_not_the_slope_of_small_sizes() -> None:
    measured = {"gradient/expert_out": gradient(2.0**-10, -1.8)}
    (of_theory,) = ranges(checked(measured))
    assert of_theory.exponent == -2.0
    assert of_theory.leaves["fp16"] == pytest.approx(1024.0)
    (of_slope,) = ranges(checked(measured, scheme="mup"))  # of whose gradients nothing is known
    assert of_slope.exponent == pytest.approx(-1.8)
    assert of_slope.leaves["fp16"] == pytest.approx(256 * 2 ** (4 / 1.8))


def test_what_has_no_gradient_is_left_out() -> None:
    assert ranges(checked({"gradient/router": law(0.0) * 0, "backward/A4": law(-1.0, start=1)})) == []


def test_in_json() -> None:
    adam = checked({**GRADIENTS, "eps/expert_out": law(-2.0, factor=2.0**-4, spread=FLAT)}, optimizer="adam")
    document = as_json(adam)
    assert document["expert_out"] == {
        "rms": pytest.approx(2.0**-10),
        "exponent": -2.0,
        "leaves": {
            "fp16": pytest.approx(1024.0),
            "bf16": pytest.approx(2.0**66),
            "fp32 squares": pytest.approx(2.0**34.5),
        },
        "eps": pytest.approx(2.0**-20),
    }
    assert document["readout"]["leaves"] == {"fp16": None, "bf16": None, "fp32 squares": None}
    assert document["readout"]["eps"] is None
    jsonschema.validate({**adam.json(), "numerics": document}, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**adam.json(), "numerics": {"router": {}}}, SCHEMA)


def test_the_table() -> None:
    adam = checked({**GRADIENTS, "eps/expert_out": law(-2.0, factor=2.0**-4, spread=FLAT)}, optimizer="adam")
    blank, title, header, _, *rows = lines(adam)
    assert (blank, title) == ("", "numerics")
    assert header.split("  ")[0] == "gradient of"
    assert "RMS at N = 256" in header
    assert [row.split() for row in rows[:4]] == [
        ["expert_out", "0.0009766", "N^−2", "N", "≈", "1,024", "never", "N", "≈", "24,296,004,000", "0.0009766"],
        ["expert_in", "0.0009766", "N^−1", "N", "≈", "4,096", "never", "never"],
        ["router", "9.537e-07", "N^−1", "already", "never", "never"],
        ["readout", "0.5", "N^0", "never", "never", "never"],
    ]
    advice = rows[5:]
    assert advice[0].startswith("gradients of layers drift apart as N^2: in fp16 no single loss scale keeps both ends;")
    assert "grad_scale=True" in advice[1]
    assert lines(checked(GRADIENTS))[-1].startswith("for SGD: the learning rates carry the same powers;")


def test_where_gradients_keep_together_one_loss_scale_serves_them() -> None:
    text = lines(checked({"gradient/router": gradient(0.5, -1.0), "gradient/expert_in": gradient(0.1, -1.0)}))
    assert text[-1] == "gradients of all layers keep within one power of the size: one loss scale serves them"


def test_over_depth() -> None:
    depths = (2, 4, 8)
    values = {"gradient/expert_in": law(-1.0, factor=2.0**-8, start=1, sizes=depths, spread=FLAT)}
    check = Check.of(series(values, depths), theory(sizes=depths, depth=True))
    _, _, header, _, row, *_ = lines(check)
    assert "RMS at L = 8" in header
    # 2^-11 at L = 8: three halvings more.
    assert row.split()[:6] == ["expert_in", "0.0004883", "L^−1", "L", "≈", "64"]
