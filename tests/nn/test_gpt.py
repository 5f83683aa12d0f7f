"""The GPT: what it computes, what it may see, how it takes a plan."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor

import mssp
from mssp.nn import GPT, GPTConfig, MoE
from mssp.nn.generation import KeysAndValues
from mssp.nn.gpt import FeedForward, GPTOutput, rotated, rotations
from mssp.nn.router import route

CONFIG = GPTConfig(width=32, expert_width=16, experts=4, active=2, depth=2, vocabulary=50, context=16, head=16)
SOFT = replace(CONFIG, active=4)
TOKENS = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(0))


def model(config: GPTConfig = CONFIG, seed: int = 0) -> Any:
    """A GPT with weights of no particular plan, so that nothing is zero."""
    torch.manual_seed(seed)
    return GPT(config).eval()


def test_the_forward_pass_by_hand() -> None:
    """The model against a plain rewriting of it, head by head and expert by expert."""
    net = model().double()
    net.blocks[0].residual, net.blocks[1].ffn.aggregation = 0.3, 0.7
    h = net.embedding.weight[TOKENS[0]]
    S, head = len(h), 16
    cos, sin = rotations(S, head, 10000.0, like=h)

    def norm(x: Tensor, gain: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float64).eps).rsqrt() * gain

    for block in net.blocks:
        x = norm(h, block.attention_norm.weight)
        q, k, v = (x @ part.T for part in block.attention.qkv.weight.chunk(3))
        heads = []
        for i in range(2):
            columns = slice(i * head, (i + 1) * head)
            a = rotated(norm(q[:, columns], block.attention.q_norm.weight), cos, sin)
            b = rotated(norm(k[:, columns], block.attention.k_norm.weight), cos, sin)
            scores = (a @ b.T / math.sqrt(head)).masked_fill(torch.ones(S, S).triu(1).bool(), -math.inf)
            heads.append(scores.softmax(-1) @ v[:, columns])
        h = h + block.residual * torch.cat(heads, -1) @ block.attention.out.weight.T
        x = norm(h, block.ffn_norm.weight)
        logits = x @ block.ffn.router.weight.T
        mixed = torch.zeros_like(x)
        for t in range(S):
            for m in logits[t].topk(2).indices.tolist():
                expert = block.ffn.experts
                mixed[t] += logits[t, m].sigmoid() * (F.gelu(expert.w_in[m] @ x[t]) @ expert.w_out[m])
        h = h + block.residual * block.ffn.aggregation * mixed
    wanted = norm(h, net.final_norm.weight) @ net.readout.weight.T
    torch.testing.assert_close(net(TOKENS[:1]).logits[0], wanted, rtol=1e-6, atol=1e-7)


def test_the_future_is_not_seen() -> None:
    net = model()
    before = net(TOKENS).logits
    changed = TOKENS.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 50
    after = net(changed).logits
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_rotations_keep_lengths_and_see_distances_only() -> None:
    cos, sin = rotations(32, 8, 10000.0, like=torch.ones(1))
    q, k = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    turned = rotated(q.expand(32, 8), cos, sin)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm().expand(32))
    scores = turned @ rotated(k.expand(32, 8), cos, sin).T
    for distance in (0, 3, 10):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(scores.diagonal(0)[0], scores.diagonal(3)[0])


def test_every_nth_block_has_experts() -> None:
    config = replace(CONFIG, depth=4, moe_every=2, active=4)
    net: Any = GPT(config)
    assert [type(block.ffn) for block in net.blocks] == [FeedForward, MoE, FeedForward, MoE]
    assert net.blocks[0].ffn.w_in.weight.shape == (4 * 32, 32)
    output = net(TOKENS)
    assert len(output.routings) == 2
    mssp.initialize(net, mssp.plan(config.shape, regime="II", lr=0.01))


def test_loss_and_auxiliary_losses() -> None:
    output = model()(TOKENS, targets=TOKENS)
    assert output.loss is not None
    wanted = F.cross_entropy(output.logits.flatten(0, 1), TOKENS.flatten())
    torch.testing.assert_close(output.loss, wanted)
    balance = [routing.load_balancing_loss() for routing in output.routings]
    torch.testing.assert_close(output.load_balancing_loss(), sum(balance) / torch.tensor(2.0))
    assert output.z_loss() > 0
    assert model()(TOKENS).loss is None


@pytest.mark.parametrize("scheme", ["mssp", "mup"])
@pytest.mark.parametrize("tied", [False, True])
def test_one_call_applies_a_plan(scheme: str, tied: bool) -> None:
    base = GPTConfig(width=32, expert_width=16, experts=4, depth=2, vocabulary=50, context=16, head=16, tied=tied)
    target = replace(base, width=64, expert_width=32, experts=8, depth=4)
    plan = mssp.plan(target.shape, base.shape, regime="III", scheme=scheme, lr=0.01, weight_decay=0.1)
    net: Any = GPT(target)
    mssp.initialize(net, plan, seed=1)
    assert {block.residual for block in net.blocks} == {1 / 4}
    assert {block.ffn.aggregation for block in net.blocks} == {1 / 8}
    infos = mssp.describe(net)
    assert {info.role for info in infos} == {
        "embedding", "norm", "qk_norm", "hidden", "router", "expert_in", "expert_out", "final_norm",
        *(() if tied else ("readout",)),
    }  # fmt: skip
    values = plan.resolve(infos)
    for info in infos:
        parameter = net.get_parameter(info.name)
        if values[info.name].zero:
            assert not parameter.any(), info.name
        elif info.role in ("norm", "qk_norm", "final_norm"):
            assert (parameter == 1).all(), info.name
        else:
            entries = parameter[0] if values[info.name].shared == 1 else parameter
            wanted = values[info.name].init_std
            assert entries.std().item() == pytest.approx(wanted, rel=4 / (2 * entries.numel()) ** 0.5), info.name
    optimizer = torch.optim.AdamW(mssp.param_groups(net, plan))
    mssp.verify(net, optimizer, plan)
    if tied:
        assert net.tied_readout == pytest.approx(plan.multiplier("tied_readout"))
        net.tied_readout *= 2
        with pytest.raises(ValueError, match=r"^tied_readout is .*, the plan says"):
            mssp.verify(net, optimizer, plan)


def test_tied_logits_are_scaled() -> None:
    net = model(replace(SOFT, tied=True))
    net.tied_readout = 1.0
    whole = net(TOKENS).logits
    net.tied_readout = 0.5
    torch.testing.assert_close(net(TOKENS).logits, 0.5 * whole)
    assert "readout.weight" not in net.state_dict()


def gradients(net: GPT) -> list[Tensor]:
    output: GPTOutput = net(TOKENS, targets=TOKENS)
    assert output.loss is not None
    loss = output.loss + 0.01 * output.load_balancing_loss() + 0.001 * output.z_loss()
    return list(torch.autograd.grad(loss, list(net.parameters())))


def test_checkpointing_changes_memory_and_nothing_else() -> None:
    plain, saving = model(replace(CONFIG, noise=1.0)).train(), model(replace(CONFIG, noise=1.0, checkpointing=True))
    saving.train()
    torch.manual_seed(5)
    wanted = gradients(plain)
    torch.manual_seed(5)
    for a, b in zip(gradients(saving), wanted, strict=True):
        torch.testing.assert_close(a, b)
    held = []
    for net in (plain, saving):
        sizes: list[int] = []

        def keep(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            net(TOKENS, targets=TOKENS)
        held.append(sum(sizes))
    assert held[1] < 0.5 * held[0]


@pytest.mark.slow
def test_compiles_where_a_default_device_is_set() -> None:
    torch._dynamo.reset()
    net = model()
    torch.set_default_device("cpu")
    try:
        compiled: Any = torch.compile(net, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(TOKENS).logits, net(TOKENS).logits)
    finally:
        torch.set_default_device(None)


@pytest.mark.slow
@pytest.mark.parametrize("dispatch", ["dense", "grouped"])
def test_compiles_without_breaks(dispatch: str) -> None:
    torch._dynamo.reset()
    net = model(replace(CONFIG, dispatch=dispatch))
    compiled: Any = torch.compile(net, fullgraph=True)
    wanted = gradients(net)
    with torch._inductor.config.patch(fallback_by_default=True):  # code is generated for single layers of experts
        found = gradients(compiled)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's, of attention under vmap
def test_many_models_and_many_batches_under_vmap() -> None:
    models = [model(seed=seed) for seed in range(3)]
    parameters, _ = torch.func.stack_module_state(models)

    def logits(each: dict[str, Tensor], tokens: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(models[0], each, (tokens,)).logits
        return out

    tokens = torch.stack([TOKENS, TOKENS.flip(0), TOKENS.flip(1)])
    together = torch.func.vmap(logits)(parameters, tokens)
    alone = torch.stack([net(batch).logits for net, batch in zip(models, tokens, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_autocast() -> None:
    net = model()
    with torch.autocast("cpu", torch.bfloat16):
        output = net(TOKENS, targets=TOKENS)
    assert output.loss is not None
    assert output.loss.dtype == torch.float32
    assert output.routings[0].logits.dtype == torch.float32
    assert (output.loss - net(TOKENS, targets=TOKENS).loss).abs() < 0.05


def test_generation() -> None:
    net = model().train()
    start = TOKENS[:, :4]
    greedy = net.generate(start, 20, temperature=0)
    assert greedy.shape == (3, 24)  # past the context of 16
    assert torch.equal(greedy[:, :4], start)
    assert net.training
    for position in (4, 10):
        likeliest = net.eval()(greedy[:, :position]).logits[:, -1].argmax(-1)
        assert torch.equal(greedy[:, position], likeliest)
    assert torch.equal(net.generate(start, 5, top_k=1), net.generate(start, 5, temperature=0))
    assert torch.equal(net.generate(start, 5, temperature=1e-39), net.generate(start, 5, temperature=0))
    first, second = (net.generate(start, 8, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
    likely = net(start).logits[:, -1].topk(3).indices
    sampled = net.generate(start.repeat(50, 1), 1, top_k=3)[:, -1].view(50, 3)
    assert all(set(sampled[:, i].tolist()) <= set(likely[i].tolist()) for i in range(3))


def uncached(net: Any, tokens: Tensor, length: int) -> Tensor:
    """What ``generate`` gives at temperature 0, with a pass over all that fits into the context for each token."""
    for _ in range(length):
        likeliest = net(tokens[:, -net.config.context :]).logits[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, likeliest], dim=1)
    return tokens


@pytest.mark.parametrize("change", [{}, {"gated": True, "gate": "softmax", "tied": True}, {"qk_gains": False}, SOFT])
def test_what_is_kept_of_earlier_tokens_changes_nothing(change: Any) -> None:
    net = model(change if isinstance(change, GPTConfig) else replace(CONFIG, **change))
    assert torch.equal(net.generate(TOKENS[:, :4], 20, temperature=0), uncached(net, TOKENS[:, :4], 20))
    kept = [KeysAndValues(room=12) for _ in range(2)]
    parts = [net._features(part, kept)[0] for part in (TOKENS[:, :5], *TOKENS[:, 5:].split(1, dim=1))]
    logits = net._logits(torch.cat(parts, dim=1))
    torch.testing.assert_close(logits, net(TOKENS).logits, rtol=0, atol=1e-5)


def test_a_new_token_costs_one_position_until_the_window_slides() -> None:
    net, seen = model(), list[int]()
    net.embedding.register_forward_hook(lambda module, arguments, output: seen.append(output.shape[1]))
    net.generate(TOKENS[:, :11], 8)
    assert seen == [11, 1, 1, 1, 1, 1, 16, 16]  # the context is 16
    seen.clear()
    net.generate(torch.cat([TOKENS, TOKENS], dim=1), 2)
    assert seen == [16, 16]


def test_queries_and_keys_without_gains_are_normalised_all_the_same() -> None:
    net = model(replace(CONFIG, qk_gains=False))
    assert net.blocks[0].attention.q_norm.weight is None
    assert not {info.role for info in mssp.describe(net)} & {"qk_norm"}
    with_gains = model()
    with_gains.load_state_dict(net.state_dict(), strict=False)  # which start at one
    assert torch.equal(net(TOKENS).logits, with_gains(TOKENS).logits)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(TOKENS).logits.isfinite().all()


def test_auxiliary_losses_as_the_authors_have_them() -> None:
    """By hand, for two layers of four experts of which two are active, and three tokens."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.0, 3.0, 1.0, -2.0], [1.0, 2.0, 0.0, -3.0]])
    routing = route(logits, active=2)
    # Loads are 2/3, 1, 1/3, 0. Mean gates over K: (σ(2) + σ(1)) / 6, (σ(1) + σ(3) + σ(2)) / 6, σ(1) / 6, 0.
    assert routing.authors_load_balancing_loss().item() == pytest.approx(2.5884576, rel=1e-6)
    # Shares of the pairs 1/3, 1/2, 1/6, 0. Mean probabilities are the scores over their sums, of all experts.
    assert routing.load_balancing_loss().item() == pytest.approx(1.3324927, rel=1e-6)
    output = GPTOutput(logits, None, (routing, routing))
    assert output.load_balancing_loss("authors").item() == pytest.approx(5.1769152, rel=1e-6)
    assert output.load_balancing_loss("mean").item() == output.load_balancing_loss().item()
    assert output.z_loss("authors").item() == pytest.approx(2 * output.z_loss().item())
    with pytest.raises(ValueError, match="form must be one of mean, authors, got 'switch'"):
        output.load_balancing_loss("switch")
    with pytest.raises(ValueError, match="form must be one of mean, authors, got 'sum'"):
        output.z_loss("sum")


@pytest.mark.parametrize(("active", "times"), [(2, 4.0), (32, 64.0)])
def test_at_uniform_routing_the_authors_loss_grows_with_active_experts(active: int, times: float) -> None:
    """Four layers, each expert chosen by half of the tokens, and gates of 1/2: 4 K / 2 times ours."""
    rows = torch.arange(2 * active)
    near = (rows[:, None] - rows[None, :]) % (2 * active) < active
    logits = torch.where(near, 0.0, -1e-6)
    output = GPTOutput(logits, None, (route(logits, active=active),) * 4)
    assert output.load_balancing_loss().item() == pytest.approx(1.0, rel=1e-5)
    assert output.load_balancing_loss("authors").item() == pytest.approx(times, rel=1e-5)


def test_the_authors_loss_pulls_at_the_gates_of_chosen_experts_alone() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.0, 3.0, 1.0, -2.0]], requires_grad=True)
    route(logits, active=2).authors_load_balancing_loss().backward()
    assert logits.grad is not None
    assert (logits.grad != 0).tolist() == [[True, True, False, False], [False, True, True, False]]


def test_it_learns_to_copy() -> None:
    config = replace(SOFT, noise=0.0)
    net = GPT(config)
    plan = mssp.plan(config.shape, regime="III", lr=3e-2)
    mssp.initialize(net, plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(net, plan))
    losses = []
    for _ in range(60):
        loss = net(TOKENS, targets=TOKENS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(50))  # the readout starts at zero
    assert losses[-1] < 1.0


def test_a_model_made_on_the_meta_device_is_the_same() -> None:
    config = replace(SOFT, active=2, random_bias=0.5)
    plan = mssp.plan(config.shape, regime="II", lr=0.1)
    here = GPT(config)
    with torch.device("meta"):
        there = GPT(config)
    assert there(TOKENS.to("meta")).logits.shape == (3, 12, 50)
    there.to_empty(device="cpu")
    for net in (here, there):
        mssp.initialize(net, plan, seed=4)
    for name, tensor in here.state_dict().items():
        assert torch.equal(there.state_dict()[name], tensor), name
    assert torch.equal(here(TOKENS).logits, there(TOKENS).logits)
    biases = [here.get_buffer(f"blocks.{block}.ffn.router.random_bias") for block in range(2)]
    assert not torch.equal(*biases)  # each layer and each seed has its own
    mssp.initialize(there, plan, seed=5)
    assert not torch.equal(there.get_buffer("blocks.0.ffn.router.random_bias"), biases[0])


def test_factors_are_saved_with_the_weights() -> None:
    net = model(replace(SOFT, tied=True))
    plan = mssp.plan(SOFT.shape, regime="III", lr=0.1, aggregation_mult=3.0, scheme="mup")
    mssp.initialize(net, plan)
    net.blocks[1].residual, net.tied_readout = 0.7, 0.2
    again = model(replace(SOFT, tied=True), seed=1)
    again.load_state_dict(net.state_dict())
    assert again.blocks[0].ffn.aggregation == 0.75
    assert (again.blocks[1].residual, again.tied_readout) == (0.7, 0.2)
    assert torch.equal(again(TOKENS).logits, net(TOKENS).logits)


def test_float64_models_are_float64_throughout() -> None:
    assert model().double()(TOKENS, targets=TOKENS).loss.dtype == torch.float64


def test_half_and_back_changes_weights_only() -> None:
    net = model(SOFT)
    weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    before = net(TOKENS).logits
    net.bfloat16().float().load_state_dict(weights)
    assert torch.equal(net(TOKENS).logits, before)


def test_deterministic_on_the_cpu() -> None:
    for a, b in zip(gradients(model()), gradients(model()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 40}, "width 40 is not a whole number of heads of size 16"),
        ({"head": 1}, "head 1 is odd"),
        ({"moe_every": 3}, "no block would have experts: moe_every is 3, depth 2"),
        ({"active": 5}, "active = 5 of 4 experts"),
        ({"gate": "hard"}, "gate must be one of sigmoid, softmax, got 'hard'"),
        ({"dispatch": "best"}, "dispatch must be one of auto, loop, dense, grouped, triton, got 'best'"),
        ({"inverse_temperature": -1.0}, "inverse_temperature must be a positive number, got -1.0"),
        ({"noise": -1.0}, "noise must be a number of at least 0, got -1.0"),
        ({"inverse_temperature": "hot"}, "inverse_temperature must be a positive number, got 'hot'"),
        ({"rope_base": 0.0}, "rope_base must be a positive number, got 0.0"),
        ({"vocabulary": 0}, "vocabulary must be a positive whole number, got 0"),
    ],
)
def test_mistakes_in_a_config_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)


def test_mistakes_in_a_call_are_named() -> None:
    net = model()
    with pytest.raises(ValueError, match=r"tokens are whole numbers \[batch, 1 to 16\], got int64 \(1, 17\)"):
        net(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(ValueError, match=r"got float32 \(1, 4\)"):
        net(torch.zeros(1, 4))
    with pytest.raises(ValueError, match=r"targets \(3, 11\) do not go with tokens \(3, 12\)"):
        net(TOKENS, targets=TOKENS[:, 1:])
    with pytest.raises(ValueError, match="tokens 0 to 50 are not all in the vocabulary of 50"):
        net(torch.tensor([[0, 50]]))
    with pytest.raises(ValueError, match=r"got bool \(3, 12\)"):
        net(TOKENS.bool())
    with pytest.raises(ValueError, match=r"targets are int64, got torch.int32"):
        net(TOKENS, targets=TOKENS.int())
    with pytest.raises(ValueError, match=r"tokens are whole numbers \[batch, 1 to 16\], got int64 \(12,\)"):
        net.generate(TOKENS[0], 1)
    with pytest.raises(ValueError, match=r"top_k is 51, the vocabulary has 50 tokens"):
        net.generate(TOKENS, 1, top_k=51)
    for temperature in (-1.0, math.nan):
        with pytest.raises(ValueError, match="temperature must be a number of at least 0, got"):
            net.generate(TOKENS, 1, temperature=temperature)
    with pytest.raises(ValueError, match="length must be a positive whole number, got -1"):
        net.generate(TOKENS, -1)
    with pytest.raises(ValueError, match=r"tokens are whole numbers \[batch, 1 to 16\], got int64 \(3, 0\)"):
        net.generate(TOKENS[:, :0], 1)
    dense_inputs = mssp.plan(mssp.Shape(32, 16, 4, 4, 2, inputs=777), regime="III", lr=0.1)
    with pytest.raises(ValueError, match=r"the plan is for another model|the plan is for Shape"):
        mssp.initialize(model(SOFT), dense_inputs)
    deeper = mssp.plan(replace(SOFT, depth=3).shape, regime="III", lr=0.1)
    with pytest.raises(ValueError, match=r"the plan is for Shape\(.*L=3.*the model is Shape\(.*L=2"):
        mssp.initialize(model(SOFT), deeper)
