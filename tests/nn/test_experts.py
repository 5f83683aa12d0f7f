"""Experts as users call them: autocast, compile, torch.func, the choice of a path, mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch._inductor.config
from torch import Tensor

import mssp
from mssp.nn import Experts, ExpertWeights, MoE, apply_experts
from mssp.nn.experts import backend
from mssp.nn.moe import DISPATCHES, chosen_path

N, E, M, K, T = 16, 8, 4, 2, 10
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def weights(dtype: torch.dtype = torch.float32, gated: bool = False) -> ExpertWeights:
    torch.manual_seed(0)
    w_in, w_out = torch.randn(M, 2 * E if gated else E, N, dtype=dtype), torch.randn(M, E, N, dtype=dtype)
    return ExpertWeights(w_in, w_out)


def routed() -> tuple[Tensor, Tensor]:
    gates, chosen = torch.rand(T, M, generator=torch.Generator().manual_seed(1)).topk(K)
    return gates, chosen


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_leading_axes_are_tokens(dispatch: str) -> None:
    moe = MoE(N, E, M, K, dispatch=dispatch).to(DEVICE)
    x = torch.randn(2, 5, N, device=DEVICE)
    nested, _ = moe(x)
    flat, _ = moe(x.flatten(0, 1))
    assert nested.shape == x.shape
    torch.testing.assert_close(nested.flatten(0, 1), flat)


@pytest.mark.parametrize("dispatch", ["auto", "loop", "dense", "grouped"])
def test_autocast_computes_products_in_half_and_keeps_float32_gradients(dispatch: str) -> None:
    torch.manual_seed(0)
    moe = MoE(N, E, M, K, dispatch=dispatch)
    x = torch.randn(T, N, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = moe(x)
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    reference, _ = moe(x)
    assert 1e-4 < (y - reference).norm() / reference.norm() < 2e-2
    for name, parameter in moe.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("dispatch", ["auto", "dense", "grouped", "triton"])
def test_compiles_without_breaks(dispatch: str) -> None:
    """And gives the loop's outputs and gradients, for batches of changing size.

    Inductor checks the sizes and strides of our operators also where it calls torch's own code for all others, which is
    ten times faster than to generate C++ and compile it.
    """
    with torch._inductor.config.patch(fallback_by_default=True):
        graphs = compiled_graphs(dispatch, (10, 12, 15, 16))  # which auto takes for equal
    assert graphs <= 2  # once for the first size, once for any


@pytest.mark.slow
def test_generated_code_computes_the_same() -> None:
    assert compiled_graphs("auto", (10,)) == 1


def compiled_graphs(dispatch: str, batches: Sequence[int]) -> int:
    """How many graphs a compiled layer needs for batches of these sizes, in which it does what the loop does."""
    torch.manual_seed(0)
    moe, reference = (MoE(N, E, M, K, dispatch=each).to(DEVICE) for each in (dispatch, "loop"))
    reference.load_state_dict(moe.state_dict())
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    compiled: Any = torch.compile(moe, fullgraph=True, backend=counter)
    for tokens in batches:
        x = torch.randn(tokens, N, device=DEVICE)
        gradients = []
        for model in (compiled, reference):
            y, routing = model(x)
            loss = y.square().sum() + routing.load_balancing_loss() + routing.z_loss()
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        for got, wanted in zip(*gradients, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    return int(counter.frame_count)


@pytest.mark.slow
def test_auto_compiles_for_batches_of_every_size() -> None:
    """The compiler gives up after eight graphs."""
    torch._dynamo.reset()
    compiled: Any = torch.compile(MoE(N, E, M, K).to(DEVICE), fullgraph=True, backend="aot_eager")
    for power in range(1, 15):
        compiled(torch.randn(2**power + 1, N, device=DEVICE))


def test_experts_of_many_models_under_vmap() -> None:
    models = [MoE(N, E, M, K) for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(models)
    x = torch.randn(T, N)

    def outputs(each: dict[str, Tensor]) -> Tensor:
        y: Tensor = torch.func.functional_call(models[0], each, (x,))[0]
        return y

    stacked = torch.func.vmap(outputs)(parameters)
    torch.testing.assert_close(stacked, torch.stack([model(x)[0] for model in models]))


def test_explicit_paths_do_not_go_with_torch_func() -> None:
    moe = MoE(N, E, M, K, dispatch="grouped")
    with pytest.raises(ValueError, match=r"dispatch 'grouped' does not go with torch.func: use 'dense' or 'auto'"):
        torch.func.grad(lambda x: moe(x)[0].sum())(torch.randn(T, N))


@pytest.mark.parametrize(("active", "path"), [(64, "dense"), (32, "dense"), (2, "grouped")])
def test_auto_takes_what_the_table_says(active: int, path: str) -> None:
    many = ExpertWeights(torch.ones(64, 64, 256), torch.ones(64, 64, 256))
    x, gates = torch.ones(512, 256), torch.ones(512, active)
    assert chosen_path(x, gates, many) == path
    assert chosen_path(x, gates, many, "loop") == "loop"


def test_autocast_leaves_float64_alone() -> None:
    moe = MoE(N, E, M, K).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert moe(torch.randn(T, N, dtype=torch.float64))[0].dtype == torch.float64


def test_roles_are_known_without_patterns() -> None:
    moe = MoE(N, E, M, K, gated=True, bias=True, router_bias=True)
    infos = {info.name: info for info in mssp.describe(moe)}
    assert {name: info.role for name, info in infos.items()} == {
        "router.weight": "router",
        "router.bias": "router_bias",
        "experts.w_in": "expert_in",
        "experts.w_out": "expert_out",
        "experts.b_in": "expert_in_bias",
        "experts.b_out": "expert_out_bias",
    }
    assert (infos["experts.w_in"].fan_in, infos["experts.w_in"].fan_out) == (N, E)
    assert (infos["experts.w_out"].fan_in, infos["experts.w_out"].fan_out) == (E, N)
    assert "4 x (16 -> 8 -> 16), gated gelu, dispatch=auto" in repr(moe)


def call(**changes: Any) -> Callable[[], Tensor]:
    gates, chosen = routed()
    given: dict[str, Any] = {"x": torch.ones(T, N), "gates": gates, "chosen": chosen, "weights": weights()}
    return lambda: apply_experts(**{**given, **changes})


NAN = torch.full((T, N), math.nan)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (call(dispatch="fast"), "dispatch must be one of auto, loop, dense, grouped, triton, got 'fast'"),
        (call(activation="swish"), "activation must be one of gelu, relu, silu, tanh, identity, got 'swish'"),
        (call(x=torch.ones(T, N + 1)), r"the experts take inputs of width 16, got \(10, 17\)"),
        (call(x=torch.ones(T + 1, N)), r"gates \(10, 2\), chosen experts \(10, 2\) do not go with inputs \(11, 16\)"),
        (call(chosen=routed()[1] + 3), "chosen experts are numbered 3 to 6, but there are 4, counted from 0"),
        (call(chosen=routed()[1] - 1), "chosen experts are numbered -1 to 2, but there are 4, counted from 0"),
        (call(chosen=routed()[1].float()), "chosen experts are whole numbers, got torch.float32"),
        (call(gates=torch.ones(T, 0), chosen=torch.zeros(T, 0).long()), r"gates \(10, 0\) hold no expert for a token"),
        (call(chosen=None), "gates for 2 experts, but there are 4"),
        (
            call(gates=torch.ones(T, 5), chosen=torch.ones(T, 5, dtype=torch.long)),
            "gates for 5 experts, but there are 4",
        ),
        (
            call(weights=ExpertWeights(torch.ones(M, 3, N), torch.ones(M, E, N))),
            r"w_in \(4, 3, 16\) does not go with w_out \(4, 8, 16\): expected \(4, 8, 16\), or \(4, 16, 16\) for gated",
        ),
        (call(weights=ExpertWeights(torch.ones(E, N), torch.ones(E, N))), r"expert weights are stacks of matrices"),
        (
            call(weights=ExpertWeights(torch.ones(M, E, N), torch.ones(M, E, N), b_out=torch.ones(N))),
            r"b_out is \(16,\), expected \(4, 16\)",
        ),
        (
            call(weights=weights(torch.bfloat16)),
            "inputs are torch.float32 and expert weights torch.bfloat16: use one dtype, or autocast",
        ),
        (call(x=NAN, check_finite=True), r"the experts' inputs \(10, 16\) hold NaN or infinity"),
        (call(gates=NAN[:, :K], check_finite=True), r"the experts' gates \(10, 2\) hold NaN or infinity"),
        (lambda: Experts(N, E, 0), "experts must be a positive whole number, got 0"),
        (
            lambda: Experts(N, E, M, dispatch="sorted"),
            "dispatch must be one of auto, loop, dense, grouped, triton, got 'sorted'",
        ),
        (
            lambda: Experts(N, E, M, activation="swish"),
            "activation must be one of gelu, relu, silu, tanh, identity, got 'swish'",
        ),
    ],
)
def test_mistakes_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_nan_goes_through_unless_asked() -> None:
    assert call(x=NAN)().isnan().any()


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")
def test_triton_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    half = {"x": torch.ones(T, N, dtype=torch.bfloat16), "weights": weights(torch.bfloat16), "dispatch": "triton"}
    with pytest.raises(ValueError, match=r"'triton' has no torch.bfloat16 in Triton's interpreter: use float32"):
        call(**half)()
    monkeypatch.setattr(backend, "INTERPRETS", False)
    with pytest.raises(ValueError, match="'triton' runs on CUDA devices, the inputs are on cpu: use 'auto'"):
        call(dispatch="triton")()
    monkeypatch.setattr(backend, "HAS_TRITON", False)
    with pytest.raises(ValueError, match="'triton' needs the triton package: install it, or use 'auto'"):
        call(dispatch="triton")()
