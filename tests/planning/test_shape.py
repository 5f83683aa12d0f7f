from __future__ import annotations

from typing import Any

import pytest

from mssp import Shape

GOOD: dict[str, Any] = {"width": 64, "expert_width": 32, "experts": 8, "active": 2, "depth": 4}


@pytest.mark.parametrize("name", ["width", "expert_width", "experts", "active", "depth", "inputs"])
@pytest.mark.parametrize("bad", [0, -3, 2.5, "8", True, float("nan")])
def test_sizes_are_positive_whole_numbers(name: str, bad: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a positive whole number, got"):
        Shape(**{**GOOD, name: bad})


def test_numpy_integers_are_fine() -> None:
    import numpy as np

    assert Shape(**{**GOOD, "width": np.int64(64)}) == Shape(**GOOD)


def test_more_active_than_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="active must be at most experts: a token cannot use 9 of 8"):
        Shape(**{**GOOD, "active": 9})


def test_dims_are_the_papers_symbols() -> None:
    assert Shape(**GOOD).dims == {"N": 64, "N_e": 32, "M": 8, "K": 2, "L": 4, "D": 1}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
             "num_hidden_layers": 32},
            (4096, 14336, 8, 2, 32),
        ),
        (
            {"hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
             "num_experts_per_tok": 8, "num_hidden_layers": 61},
            (7168, 2048, 256, 8, 61),
        ),
    ],
)  # fmt: skip
def test_hugging_face_configs(config: dict[str, int], expected: tuple[int, ...]) -> None:
    shape = Shape.from_config(config)
    assert (shape.width, shape.expert_width, shape.experts, shape.active, shape.depth) == expected


def test_config_without_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="no experts: expected n_routed_experts or num_local_experts or num_experts"):
        Shape.from_config({"hidden_size": 64, "intermediate_size": 32})


def test_what_is_no_config_is_refused() -> None:
    with pytest.raises(ValueError, match="a model config is a mapping of names to sizes, got a NoneType"):
        Shape.from_config(None)
