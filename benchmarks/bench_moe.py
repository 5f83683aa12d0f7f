"""Ways to compute the experts of a MoE layer, side by side: time, memory, share of the roofline.

    ./dev bench moe                 # five shapes: on a CUDA device those of the paper's sizes, smaller ones without
    ./dev bench moe --save FOLDER   # where the record goes (records/)

Forward and backward, given the routing: gradients by tokens, gates and weights. ``every expert`` runs all experts on
all tokens and weighs their outputs, as research code does; ``HF grouped_mm`` is what Hugging Face transformers does by
default. The share of the roofline is the operations of the active pairs of a token and an expert, over the rate of a
large matrix product measured in the same run, over the time.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import platform
import types
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.integrations.moe import use_experts_implementation

from mssp.nn.activations import activation
from mssp.nn.experts.choice import Work, device_name
from mssp.nn.experts.paths import PATHS, ExpertWeights
from mssp.nn.experts.timing import Problem, Step, milliseconds
from mssp.nn.moe import apply_experts, chosen_path
from tests.nn.experts.memory import peak_bytes

CUDA = torch.cuda.is_available()
LARGE_MATRIX = 8192 if CUDA else 2048
ON_GPU = [
    Work(8192, 1024, 128, 64, 32),
    Work(8192, 2048, 256, 128, 32),
    Work(8192, 1024, 32, 16, 512),
    Work(8192, 2048, 256, 8, 64),
    Work(8192, 2048, 64, 8, 1024),
]
ON_CPU = [
    Work(512, 256, 32, 16, 32),
    Work(512, 512, 64, 32, 32),
    Work(512, 256, 8, 4, 256),
    Work(512, 256, 64, 2, 64),
    Work(512, 256, 16, 2, 256),
]


def matrix_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Operations per second of a large product of random matrices: the ceiling that shares are shares of."""
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    ms = milliseconds({"product": lambda: (a @ b,)}, device)["product"]
    return 2 * size**3 / ms * 1e3


def every_expert(x: Tensor, gates: Tensor, chosen: Tensor, weights: ExpertWeights, act: str) -> Tensor:
    """All experts on all tokens, then a weighted sum of their outputs: [M, tokens, width] is held."""
    all_gates = torch.zeros(len(x), weights.experts, device=x.device).scatter(1, chosen, gates)
    outputs = torch.bmm(activation(act)(torch.matmul(x, weights.w_in.mT)), weights.w_out)
    return (all_gates.T.unsqueeze(-1) * outputs).sum(0).to(x.dtype)


@use_experts_implementation(has_gate=False)
class HuggingFaceExperts(nn.Module):
    """Experts as transformers keeps them, which its decorator computes by grouped_mm."""

    def __init__(self, config: types.SimpleNamespace, weights: ExpertWeights) -> None:
        super().__init__()
        self.num_experts, self.act_fn = weights.experts, F.gelu
        self.up_proj = weights.w_in
        self.down_proj = weights.w_out.detach().mT.contiguous().requires_grad_()


def huggingface(problem: Problem) -> Step:
    """The default of transformers, on its own layout of the weights."""
    experts = HuggingFaceExperts(types.SimpleNamespace(_experts_implementation="grouped_mm"), problem.weights)

    def forward(x: Tensor, gates: Tensor, chosen: Tensor, weights: ExpertWeights, act: str) -> Tensor:
        out: Tensor = experts(x, chosen, gates.to(x.dtype))
        return out

    return problem.step(forward, leaves=(problem.x, problem.gates, problem.weights.w_in, experts.down_proj))


def steps_of(problem: Problem) -> dict[str, Step]:
    steps = {"every expert": problem.step(every_expert), "HF grouped_mm": huggingface(problem)}
    steps |= {name: problem.step(path) for name, path in PATHS.items() if name != "triton" or problem.x.is_cuda}
    return {**steps, "auto": problem.step(apply_experts)}


def agreement(steps: dict[str, Step]) -> dict[str, float]:
    """How far each way's gradient by the tokens is from the loop's."""
    gradients = {name: step()[0].double() for name, step in steps.items()}
    reference = gradients["loop"]
    return {name: float((g - reference).norm() / reference.norm()) for name, g in gradients.items()}


def table(work: Work, device: torch.device, dtype: torch.dtype, rate: float, seconds: float) -> list[str]:
    problem = Problem.random(work, device, dtype)
    steps = steps_of(problem)
    errors = agreement(steps)
    times = milliseconds(steps, device, seconds)
    floor = work.operations("grouped") / rate * 1e3
    all_pairs = work.operations("dense") / rate * 1e3
    auto = chosen_path(problem.x, problem.gates, problem.weights)
    lines = [
        f"### N {work.width}, M {work.experts}, K {work.active}, N_e {work.expert_width}, {work.tokens} tokens",
        "",
        f"Floor of the active pairs {floor:.3g} ms, of all pairs {all_pairs:.3g} ms; auto takes `{auto}`.",
        "",
        "| way | ms | x auto | peak GiB | share of roofline | error against loop |",
        "|---|---|---|---|---|---|",
    ]
    for name, ms in times.items():
        peak = peak_bytes(steps[name], device)
        numbers = f"{ms:.3f} | {ms / times['auto']:.2f} | {peak / 2**30:.3f} | {floor / ms:.1%} | {errors[name]:.1e}"
        lines.append(f"| {name} | {numbers} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, default=Path("records"), help="folder for the record")
    parser.add_argument("--seconds", type=float, default=1.5, help="time spent on each shape")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if CUDA else "cpu")
    dtype = torch.bfloat16 if CUDA else torch.float32
    rate = matrix_rate(device, dtype, LARGE_MATRIX)
    name = device_name(device) if CUDA else f"{torch.get_num_threads()} CPU threads"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, transformers {transformers.__version__}"
    with contextlib.suppress(ImportError):
        import triton

        versions += f", Triton {triton.__version__}"
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [
        f"# Ways to compute experts: {name}",
        "",
        f"{today}; {versions}; {str(dtype).removeprefix('torch.')}, forward and backward, medians of interleaved runs.",
        f"A large matrix product ran at {rate / 1e12:.3g} TFLOP/s. Peak memory is what a run takes on top of tokens,",
        "routing and weights. Command: `./dev bench moe`.",
    ]
    for work in ON_GPU if CUDA else ON_CPU:
        lines += ["", *table(work, device, dtype, rate, options.seconds)]
    text = "\n".join(lines) + "\n"
    print(text)
    slug = name.lower().replace(" ", "-")
    target = options.save / f"{today}-experts-{slug}.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(target)
    print(f"saved {target}")


if __name__ == "__main__":
    main()
