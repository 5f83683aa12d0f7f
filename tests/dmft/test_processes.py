"""Fields whose kernels grow: what is drawn has the asked moments, exactly."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from mssp.dmft.processes import GaussianProcess, Population

CPU = torch.device("cpu")
CUTS = {"row by row": [0, 1, 2, 3, 4, 5, 6], "in blocks": [0, 1, 3, 6], "at once": [0, 6]}


def population(name: str = "neurons", members: int = 500, seed: int = 0) -> Population:
    return Population(name, members, seed, CPU)


def kernel_of_rank(rank: int, size: int = 6) -> Tensor:
    root = torch.randn(size, rank, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return root @ root.T


def grown(field: GaussianProcess, kernel: Tensor, cuts: list[int]) -> Tensor:
    return torch.cat([field.extended(kernel[first:last, :last]) for first, last in pairwise(cuts)])


def covariances(values: Tensor) -> Tensor:
    return values @ values.T / values.shape[1]


def drawn(kernel: Tensor, cuts: list[int], seed: int = 0) -> Tensor:
    return grown(GaussianProcess("u", population(seed=seed), most=len(kernel)), kernel, cuts)


def raised(kernel: list[list[float]]) -> str:
    field = GaussianProcess("u2", population(), most=len(kernel))
    with pytest.raises((ValueError, FloatingPointError)) as error:
        grown(field, torch.tensor(kernel), list(range(len(kernel) + 1)))
    return f"{type(error.value).__name__}: {error.value}"


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("rank", [1, 2, 5, 6])
def test_sample_covariances_are_the_kernel(rank: int, cuts: list[int]) -> None:
    kernel = kernel_of_rank(rank)
    values = drawn(kernel, cuts)
    torch.testing.assert_close(covariances(values), kernel, rtol=0, atol=1e-10)
    torch.testing.assert_close(values.mean(1), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.linalg.matrix_rank(values, rtol=1e-9) == rank


def test_how_a_kernel_grows_does_not_matter() -> None:
    kernel = kernel_of_rank(4)
    row_by_row = drawn(kernel, CUTS["row by row"])
    for cuts in CUTS.values():
        torch.testing.assert_close(drawn(kernel, cuts), row_by_row, rtol=0, atol=1e-10)


def test_a_row_that_follows_from_earlier_ones_adds_no_noise() -> None:
    kernel = torch.tensor([[4.0, 0.0, 4.0, 0.0], [0.0, 1.0, -3.0, 0.0], [4.0, -3.0, 13.0, 0.0], [0.0, 0.0, 0.0, 9.0]])
    first, second, third, fourth = drawn(kernel, [0, 1, 2, 3, 4])
    torch.testing.assert_close(third, first - 3 * second, rtol=0, atol=1e-12)
    assert float(fourth.square().mean()) == pytest.approx(9.0)
    # The fourth is the third one with noise of its own: the rows between do not use any up.
    without = drawn(torch.diag(torch.tensor([4.0, 1.0, 9.0])), [0, 1, 2, 3])
    torch.testing.assert_close(fourth, without[2], rtol=0, atol=1e-10)


def test_a_row_that_follows_up_to_rounding_adds_no_noise() -> None:
    for rounding in (1e-12, -1e-9):
        first, second = drawn(torch.tensor([[1.0, 1.0], [1.0, 1.0 + rounding]], dtype=torch.float64), [0, 1, 2])
        torch.testing.assert_close(second, first, rtol=0, atol=1e-15)


def test_of_a_zero_kernel_all_is_zero() -> None:
    assert not drawn(torch.zeros(3, 3), [0, 1, 3]).any()


def test_single_precision_is_taken() -> None:
    assert drawn(torch.eye(2, dtype=torch.float32), [0, 2]).dtype == torch.float64


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ([[1.0, 2.0], [2.0, 1.0]], "row 1 has variance 1, of which earlier rows explain 4"),
        ([[1.0, 0.0], [0.0, -0.5]], "row 1 has variance -0.5, of which earlier rows explain 0"),
        ([[1.0, 1.0], [1.0, 0.9]], "row 1 has variance 0.9, of which earlier rows explain 1"),
    ],
)
def test_an_indefinite_kernel_is_refused(kernel: list[list[float]], message: str) -> None:
    assert raised(kernel) == f"ValueError: the kernel of u2 is not positive: {message}"


@pytest.mark.parametrize("kernel", [[[float("nan")]], [[float("inf")]], [[1.0, 0.0], [float("nan"), 1.0]]])
def test_a_kernel_that_is_not_finite_is_refused(kernel: list[list[float]]) -> None:
    assert raised(kernel) == "FloatingPointError: the kernel of u2 is not finite"


def test_fields_of_one_population_do_not_overlap() -> None:
    members = population()
    fields = {name: GaussianProcess(name, members, most=6) for name in ("u", "b", "probe")}
    kernel = kernel_of_rank(6)
    values = torch.cat([
        field.extended(kernel[step : step + 1, : step + 1]) for step in range(6) for field in fields.values()
    ])  # fmt: skip
    expected = torch.kron(kernel, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(covariances(values), expected, rtol=0, atol=1e-10)


def test_rows_of_several_pools_do_not_overlap() -> None:
    members = population(members=200)
    first, second = members.pool("first", 40), members.pool("second", 40)
    for count in (1, 30, 0, 9):
        assert first.grow(count).shape == second.grow(count).shape == (count, 200)
    rows = torch.cat([first.rows, second.rows])
    torch.testing.assert_close(covariances(rows), torch.eye(80, dtype=torch.float64), rtol=0, atol=1e-10)


def test_there_may_be_more_rows_than_members() -> None:
    values = drawn_by(population(members=8), rows=20)
    assert values.isfinite().all()
    torch.testing.assert_close(values.square().mean(1), torch.ones(20, dtype=torch.float64))
    at_once = GaussianProcess("u", population(members=8), most=20).extended(torch.eye(20))
    torch.testing.assert_close(at_once.square().mean(1), torch.ones(20, dtype=torch.float64))


def drawn_by(members: Population, rows: int, name: str = "u") -> Tensor:
    return grown(GaussianProcess(name, members, most=rows), torch.eye(rows), list(range(rows + 1)))


def test_one_seed_gives_one_set_of_values() -> None:
    assert torch.equal(drawn_by(population(seed=3), 5), drawn_by(population(seed=3), 5))
    for other in (
        drawn_by(population(seed=4), 5),
        drawn_by(population("experts", seed=3), 5),
        drawn_by(population(seed=3), 5, name="b"),
    ):
        assert abs(covariances(torch.cat([drawn_by(population(seed=3), 5), other]))[:5, 5:]).max() < 0.2


def test_similar_kernels_give_similar_values() -> None:
    kernel = kernel_of_rank(6) + torch.eye(6)
    moved = drawn(kernel + 1e-6 * torch.eye(6), [0, 2, 6]) - drawn(kernel, [0, 2, 6])
    assert 0 < moved.square().mean().sqrt() < 1e-5


def test_other_populations_change_nothing() -> None:
    alone = drawn_by(population(), 5)
    ours, others = population(), population("experts", members=700)
    field, other = GaussianProcess("u", ours, most=5), GaussianProcess("u", others, most=9)
    mixed = []
    for step in range(5):
        other.extended(torch.eye(9)[step : step + 1, : step + 1])
        mixed.append(field.extended(torch.eye(5)[step : step + 1, : step + 1]))
    assert torch.equal(torch.cat(mixed), alone)


def test_values_look_normal() -> None:
    values = drawn_by(population(members=20_000), 3)
    torch.testing.assert_close(values.pow(4).mean(1), torch.full((3,), 3.0, dtype=torch.float64), rtol=0, atol=0.15)
    torch.testing.assert_close(values.pow(3).mean(1), torch.zeros(3, dtype=torch.float64), rtol=0, atol=0.1)
