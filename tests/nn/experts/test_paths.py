"""Every path gives what the loop gives: outputs and all gradients, in every dtype, at the edges."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from mssp.nn.activations import ACTIVATIONS
from mssp.nn.experts import backend
from mssp.nn.experts.pairs import collect, sort_by_expert, spread
from mssp.nn.experts.paths import PATHS, ExpertWeights
from tests.nn.experts.memory import peak_bytes

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FAST = [path for path in PATHS if path != "loop"]
# The kernels have no float64 on a GPU, and no bfloat16 products in Triton's interpreter: errors say so elsewhere.
_WITHOUT_KERNELS = torch.float64 if DEVICE.type == "cuda" else torch.bfloat16
POSSIBLE = [(path, dtype) for path in FAST for dtype in TOLERANCE if (path, dtype) != ("triton", _WITHOUT_KERNELS)]
# Numerical gradients need float64.
DOUBLE = [path for path in PATHS if path != "triton" or DEVICE.type == "cpu"]


@dataclass(frozen=True)
class Case:
    tokens: int = 24
    width: int = 32
    experts: int = 6
    active: int | None = 2
    expert_width: int = 16
    gated: bool = False
    bias: bool = False
    activation: str = "gelu"
    only: int | None = None  # all tokens go to this expert first


CASES = {
    "plain": Case(),
    "gated": Case(gated=True, activation="silu"),
    "biases": Case(bias=True),
    "gated with biases": Case(gated=True, bias=True),
    "one token": Case(tokens=1),
    "one active": Case(active=1),
    "all active by top-K": Case(active=6),
    "soft": Case(active=None),
    "one expert": Case(experts=1, active=1),
    "empty experts": Case(tokens=3, experts=16, active=1, bias=True),
    "odd expert width": Case(expert_width=13),
    "odd expert width, gated": Case(expert_width=13, gated=True),
    "odd width": Case(width=23, expert_width=9, bias=True),
    "all on one expert": Case(active=1, only=3),
    "many rows of one expert": Case(tokens=300, experts=2, active=1, only=1),
    "wide": Case(tokens=9, width=136, expert_width=200, experts=3),
    **{name: Case(activation=name) for name in ACTIVATIONS},
    **{f"gated {name}": Case(activation=name, gated=True) for name in ACTIVATIONS},
}


@dataclass
class Tensors:
    x: Tensor
    gates: Tensor
    chosen: Tensor | None
    weights: ExpertWeights
    grad: Tensor

    def leaves(self) -> dict[str, Tensor]:
        w = self.weights
        named = {"x": self.x, "gates": self.gates, "w_in": w.w_in, "w_out": w.w_out, "b_in": w.b_in, "b_out": w.b_out}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def to(self, dtype: torch.dtype) -> Tensors:
        """The same numbers in another dtype; gates stay at least float32."""
        w = self.weights
        tensors = (w.w_in, w.w_out, w.b_in, w.b_out)
        cast = [None if each is None else each.detach().to(dtype).requires_grad_() for each in tensors]
        gates = self.gates.detach().to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        x = self.x.detach().to(dtype).requires_grad_()
        return Tensors(x, gates, self.chosen, ExpertWeights(*cast), self.grad.to(dtype))  # type: ignore[arg-type]


def tensors(case: Case, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64) * scale
        return drawn.to(device, dtype).requires_grad_()

    N, E, M = case.width, case.expert_width, case.experts
    F = 2 * E if case.gated else E
    weights = ExpertWeights(
        normal(M, F, N, scale=N**-0.5),
        normal(M, E, N, scale=E**-0.5),
        normal(M, F) if case.bias else None,
        normal(M, N) if case.bias else None,
    )
    preference = torch.rand(case.tokens, M, generator=generator)
    if case.only is not None:
        preference[:, case.only] = 2.0
    chosen = None if case.active is None else preference.topk(case.active).indices.to(device)
    wide = torch.promote_types(dtype, torch.float32)
    gates = torch.rand(case.tokens, case.active or M, generator=generator) + 0.25
    return Tensors(
        normal(case.tokens, N),
        gates.to(device, wide).requires_grad_(),
        chosen,
        weights,
        normal(case.tokens, N).detach(),
    )


def run(path: str, given: Tensors, case: Case) -> dict[str, Tensor]:
    """The output and every gradient by name."""
    out = PATHS[path](given.x, given.gates, given.chosen, given.weights, case.activation)
    leaves = given.leaves()
    gradients = torch.autograd.grad(out, list(leaves.values()), given.grad)
    return {"output": out.detach(), **dict(zip(leaves, gradients, strict=True))}


def assert_agree(got: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    for name, reference in wanted.items():
        assert got[name].shape == reference.shape, name
        assert got[name].isfinite().all(), name
        scale = reference.double().norm()
        error = (got[name].double() - reference.double()).norm()
        assert error <= tolerance * scale + 1e-30, f"{name}: {float(error / scale):.2e}"


@pytest.mark.parametrize(("path", "dtype"), POSSIBLE, ids=lambda each: str(each).removeprefix("torch."))
@pytest.mark.parametrize("name", CASES)
def test_paths_agree_with_the_loop(name: str, path: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    given = tensors(case, dtype, DEVICE)
    # The loop in float64 on the same numbers: half precision is then held to the truth, not to another rounding.
    assert_agree(run(path, given, case), run("loop", given.to(torch.float64), case), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_the_loop_is_what_it_says(dtype: torch.dtype) -> None:
    """The loop against the formula, one token and one expert at a time."""
    case = replace(CASES["gated with biases"], activation="tanh")
    given = tensors(case, dtype, torch.device("cpu"))
    w = given.weights
    assert given.chosen is not None
    assert w.b_in is not None
    assert w.b_out is not None
    rows = []
    for x, gates, chosen in zip(given.x, given.gates, given.chosen, strict=True):
        total = torch.zeros(case.width)
        for gate, m in zip(gates, chosen, strict=True):
            pre = w.w_in[m] @ x + w.b_in[m]
            hidden = torch.tanh(pre[: case.expert_width]) * pre[case.expert_width :]
            total = total + gate * (w.w_out[m].T @ hidden + w.b_out[m])
        rows.append(total)
    reference = torch.stack(rows).double()
    out = run("loop", given, case)["output"].double()
    assert (out - reference).norm() <= max(TOLERANCE[dtype], 1e-6) * reference.norm()


@pytest.mark.parametrize("path", PATHS)
def test_inputs_need_not_be_contiguous(path: str) -> None:
    case = Case()
    given = tensors(case, torch.float32, DEVICE)
    wanted = run("loop", given, case)
    strided = given.x.detach().T.contiguous().T.requires_grad_()
    flipped = given.grad.T.contiguous().T
    assert not strided.is_contiguous()
    assert_agree(run(path, replace(given, x=strided, grad=flipped), case), wanted, 1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_gradients_may_have_zero_strides(path: str) -> None:
    case = Case()
    given = tensors(case, torch.float32, DEVICE)
    expanded = torch.ones(1, 1, device=given.x.device).expand(given.x.shape)
    got = run(path, replace(given, grad=expanded), case)
    assert_agree(got, run("loop", replace(given, grad=expanded.contiguous()), case), 1e-5)


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.slow] if path == "triton" else []) for path in DOUBLE]
)
@pytest.mark.parametrize("gated", [False, True])
def test_gradcheck(path: str, gated: bool) -> None:
    device = torch.device("cpu")
    case = Case(tokens=3, width=4, experts=3, active=2, expert_width=2, gated=gated, bias=True, activation="tanh")
    given = tensors(case, torch.float64, device)
    leaves = given.leaves()

    def out(x: Tensor, gates: Tensor, *weights: Tensor) -> Tensor:
        return PATHS[path](x, gates, given.chosen, ExpertWeights(*weights), case.activation)

    # Kernels are interpreted here: they are held to random mixtures of the derivatives, and the others to each one.
    assert torch.autograd.gradcheck(out, tuple(leaves.values()), fast_mode=path == "triton")


@pytest.mark.parametrize("path", FAST)
def test_two_runs_are_equal_to_the_bit(path: str) -> None:
    case = Case(tokens=200, bias=True)
    given = tensors(case, torch.float32, DEVICE)
    first, second = run(path, given, case), run(path, given, case)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_pairs_are_sorted_by_expert_and_then_by_token() -> None:
    chosen = torch.tensor([[3, 0], [0, 1], [3, 1]])
    pairs = sort_by_expert(chosen, experts=5)
    assert pairs.token.tolist() == [0, 1, 1, 2, 0, 2]
    assert pairs.offsets.tolist() == [0, 2, 4, 4, 6, 6]
    assert pairs.order.tolist() == [1, 2, 3, 5, 0, 4]
    x = torch.tensor([[1.0], [10.0], [100.0]])
    assert spread(x, pairs).flatten().tolist() == [1, 10, 10, 100, 1, 100]
    assert collect(torch.arange(6.0).unsqueeze(1), pairs).flatten().tolist() == [0 + 4, 1 + 2, 3 + 5]


@pytest.mark.parametrize("active", [None, 32, 2])
@pytest.mark.parametrize("path", FAST)
def test_no_path_holds_the_outputs_of_all_experts(path: str, active: int | None) -> None:
    """All that a run holds at once, gradients included, has fewer entries than M x tokens x width."""
    case = Case(tokens=256, width=64, experts=32, active=active, expert_width=2)
    given = tensors(case, torch.float32, DEVICE)

    def step() -> tuple[Tensor, ...]:
        return tuple(run(path, given, case).values())

    assert peak_bytes(step, DEVICE) < 4 * case.tokens * case.experts * case.width


@pytest.fixture
def kernels_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in place of torch's operations, as on a GPU."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(backend, "fused", lambda x: x.dtype in (torch.float32, torch.float64))
        monkeypatch.setattr(backend, "runs_triton", lambda _, dtype: dtype in (torch.float32, torch.float64))


@pytest.mark.usefixtures("kernels_everywhere")
@pytest.mark.parametrize("path", ["dense", "grouped"])
@pytest.mark.parametrize("name", ["plain", "gated with biases", "odd expert width", "soft", "one token", "tanh"])
def test_paths_agree_where_kernels_serve_them(name: str, path: str) -> None:
    case = CASES[name]
    given = tensors(case, torch.float32, DEVICE)
    assert_agree(run(path, given, case), run("loop", given.to(torch.float64), case), 1e-5)


@pytest.mark.usefixtures("kernels_everywhere")
@pytest.mark.parametrize("path", FAST)
def test_tensors_may_be_strided_and_expanded(path: str) -> None:
    """Gates that are one number seen often, weights and biases that are parts of others, with kernels and without."""
    case = Case(bias=True)
    given = tensors(case, torch.float32, DEVICE)
    w = given.weights
    strided = [torch.cat([each, each], -1)[..., : each.shape[-1]].detach().requires_grad_()
               for each in (w.w_in, w.w_out, w.b_in, w.b_out) if each is not None]  # fmt: skip
    assert not any(each.is_contiguous() for each in strided)
    gates = torch.full((1, 1), 0.5, device=given.x.device).expand(given.gates.shape).detach().requires_grad_()
    assert given.chosen is not None
    chosen = given.chosen.T.contiguous().T
    odd = replace(given, gates=gates, chosen=chosen, weights=ExpertWeights(*strided))
    plain = replace(given, gates=gates.detach().contiguous().requires_grad_())
    assert_agree(run(path, odd, case), run("loop", plain, case), 1e-5)


@pytest.mark.parametrize("path", ["loop", "dense", "grouped"])
def test_second_derivatives(path: str) -> None:
    case = Case(tokens=3, width=4, experts=3, active=2, expert_width=2, bias=True, activation="tanh")
    given = tensors(case, torch.float64, torch.device("cpu"))

    def out(x: Tensor, gates: Tensor, *weights: Tensor) -> Tensor:
        return PATHS[path](x, gates, given.chosen, ExpertWeights(*weights), case.activation)

    assert torch.autograd.gradgradcheck(out, tuple(given.leaves().values()))


@pytest.mark.usefixtures("kernels_everywhere")
@pytest.mark.parametrize("path", FAST)
def test_kernels_refuse_second_derivatives(path: str) -> None:
    case = Case()
    given = tensors(case, torch.float32, DEVICE)
    out = PATHS[path](given.x, given.gates, given.chosen, given.weights, case.activation)
    (gradient,) = torch.autograd.grad(out.square().sum(), given.x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|no autograd|does not require grad"):
        gradient.square().sum().backward()


def test_frozen_weights_cost_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    given = tensors(case, torch.float32, DEVICE)
    for weight in (given.weights.w_in, given.weights.w_out):
        weight.requires_grad_(False)
    kernels = backend.kernels()
    monkeypatch.setattr(kernels, "matrices_gradient", lambda *_: pytest.fail("computed for nothing"))
    out = PATHS["triton"](given.x, given.gates, given.chosen, given.weights, case.activation)
    wanted = PATHS["loop"](given.x, given.gates, given.chosen, given.weights, case.activation)
    got, reference = (torch.autograd.grad(each, [given.x, given.gates], given.grad) for each in (out, wanted))
    for a, b in zip(got, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_no_tokens_at_all(path: str) -> None:
    case = replace(CASES["biases"], tokens=0)
    results = run(path, tensors(case, torch.float32, DEVICE), case)
    assert results["output"].shape == (0, case.width)
    assert all(not gradient.any() for gradient in results.values())
