"""What must also hold on a CUDA device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mssp
from own_transformer import CLAIMS, Transformer, batch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SHAPE = mssp.Shape(width=64, expert_width=32, experts=4, active=4, depth=2)


def trained(device: str, scaled: bool, **options: Any) -> tuple[list[float], torch.nn.Module]:
    plan = mssp.plan(SHAPE, regime="III", optimizer="adamw", lr=0.3, weight_decay=0.1, eps=1e-3, grad_scale=scaled)
    model = Transformer(plan).double().to(device)
    mssp.initialize(model, plan, CLAIMS)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan, CLAIMS), **options)
    if scaled:
        mssp.scale_gradients(optimizer)
    mssp.verify(model, optimizer, plan, CLAIMS)
    losses = []
    for step in range(10):
        tokens, following = (part.to(device) for part in batch(step, size=4))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def test_initial_values_are_those_of_the_cpu() -> None:
    for scheme in ("mssp", "mup"):
        plan = mssp.plan(SHAPE, regime="III", scheme=scheme, lr=1e-2)
        here, there = Transformer(plan), Transformer(plan).cuda()
        mssp.initialize(here, plan, CLAIMS)
        mssp.initialize(there, plan, CLAIMS)
        for (name, a), b in zip(here.named_parameters(), there.parameters(), strict=True):
            assert torch.equal(a, b.cpu()), name


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"capturable": True}])
@pytest.mark.parametrize("scaled", [False, True])
def test_every_adam_takes_the_groups(options: dict[str, bool], scaled: bool) -> None:
    reference, _ = trained("cpu", scaled=False)
    losses, _ = trained("cuda", scaled, **options)
    assert losses == pytest.approx(reference, rel=1e-6)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # advice of torch.compile
def test_compiled_models_are_initialised_in_place() -> None:
    plan = mssp.plan(SHAPE, regime="II", lr=1e-2)
    model = Transformer(plan).cuda()
    compiled: Any = torch.compile(model)
    tokens = batch(0)[0].cuda()
    compiled(tokens)
    mssp.initialize(compiled, plan, CLAIMS)
    torch.testing.assert_close(compiled(tokens), model(tokens))
    assert not compiled(tokens).any()  # the readout starts at zero
