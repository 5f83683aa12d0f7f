"""Our hosts keep the contract of hosts, with the groups that each framework's own code builds."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from mssp.hosts import megatron, nanogpt, olmo_core, torchtitan
from mssp.testing import HostContract
from mssp.testing.hosts import Numbers
from tests.hosts.real_hosts import model_of, stand_ins
from tests.hosts.test_exports import EXPECTED, GROUPS

ROLES = {
    "torchtitan": {
        "tok_embeddings.weight": "embedding",
        "layers.3.attention_norm.weight": "norm",
        "layers.3.attention.qkv_linear.wqkv.weight": "hidden",
        "layers.3.attention.q_norm.weight": "qk_norm",
        "layers.3.moe.router.gate.weight": "router",
        "layers.3.moe.routed_experts.inner_experts.w1_EFD": "expert_in",
        "layers.3.moe.routed_experts.inner_experts.w2_EDF": "expert_out",
        "layers.3.moe.routed_experts.inner_experts.mlp1_bias_EG": "expert_in_bias",
        "norm.weight": "final_norm",
        "lm_head.weight": "readout",
    },
    "olmo-core": {
        "embeddings.weight": "embedding",
        "blocks.3.attention.w_k.weight": "hidden",
        "blocks.3.attention.q_norm.weight": "norm",
        "blocks.3.feed_forward_moe.router.weight": "router",
        "blocks.3.feed_forward_moe.experts.mlp.w1": "expert_in",
        "blocks.3.feed_forward_moe.experts.mlp.w2": "expert_out",
        "lm_head.norm.weight": "final_norm",
        "lm_head.w_out.weight": "readout",
    },
    "megatron": {
        "embedding.word_embeddings.weight": "embedding",
        "decoder.layers.3.self_attention.linear_qkv.layer_norm_weight": "norm",
        "decoder.layers.3.mlp.router.weight": "router",
        "decoder.layers.3.mlp.experts.local_experts.7.linear_fc2.weight": "expert_out",
        "decoder.layers.3.mlp.experts.local_experts.7.linear_fc1.bias": "expert_in_bias",
        "decoder.layers.3.mlp.shared_experts.gate_weight": "shared_gate",
        "decoder.final_layernorm.weight": "final_norm",
        "output_layer.weight": "readout",
    },
    "nanogpt": {
        "transformer.wte.weight": "embedding",
        "transformer.h.3.ln_1.weight": "norm",
        "transformer.h.3.attn.c_attn.weight": "hidden",
        "transformer.h.3.mlp.router.w_g.weight": "router",
        "transformer.h.3.mlp.experts.c_fc": "expert_in",
        "transformer.h.3.mlp.experts.c_proj": "expert_out",
        "transformer.h.3.mlp.experts.fc_bias": "expert_in_bias",
        "transformer.ln_f.weight": "final_norm",
        "lm_head.weight": "readout",
    },
}


class OurHost(HostContract):
    """Groups as ``test_exports.py`` builds them, beside stand-ins for the frameworks."""

    name: str

    @pytest.fixture(autouse=True)
    def _stand_ins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, module in stand_ins().items():
            monkeypatch.setitem(sys.modules, name, module)

    def groups(self, exported: SimpleNamespace, shapes: Mapping[str, tuple[int, ...]]) -> Numbers:
        return GROUPS[self.name](exported, model_of(shapes))


def parameters(name: str) -> Mapping[str, tuple[tuple[int, ...], str]]:
    return {parameter: (EXPECTED[name][parameter][0], role) for parameter, role in ROLES[name].items()}


class TestTorchtitan(OurHost):
    host, name, parameters = torchtitan, "torchtitan", parameters("torchtitan")


class TestOLMoCore(OurHost):
    host, name, parameters = olmo_core, "olmo-core", parameters("olmo-core")


class TestMegatron(OurHost):
    host, name, parameters = megatron, "megatron", parameters("megatron")


class TestNanoGPT(OurHost):
    host, name, parameters = nanogpt, "nanogpt", parameters("nanogpt")


class WithAnotherRate(TestNanoGPT):
    """Its loop forgets the factor of one role."""

    __test__ = False

    def groups(self, exported: SimpleNamespace, shapes: Mapping[str, tuple[int, ...]]) -> Numbers:
        numbers = dict(super().groups(exported, shapes))
        lr, eps, decay = numbers["transformer.h.3.mlp.router.w_g.weight"]
        return numbers | {"transformer.h.3.mlp.router.w_g.weight": (2 * lr, eps, decay)}


class ThatForgetsAParameter(TestNanoGPT):
    __test__ = False

    def groups(self, exported: SimpleNamespace, shapes: Mapping[str, tuple[int, ...]]) -> Numbers:
        numbers = super().groups(exported, shapes)
        return {name: each for name, each in numbers.items() if name != "lm_head.weight"}


class ThatStartsGainsAtZero(TestNanoGPT):
    __test__ = False

    def start(self, exported: SimpleNamespace, name: str, shape: tuple[int, ...]) -> tuple[str, float]:
        return ("zeros", 0.0) if "ln_" in name else super().start(exported, name, shape)


@pytest.mark.parametrize("host", [WithAnotherRate, ThatForgetsAParameter])
def test_wrong_numbers_are_found(host: type[TestNanoGPT]) -> None:
    with pytest.raises(AssertionError):
        host().test_every_parameter_gets_the_numbers_of_the_plan()


def test_a_wrong_start_is_found() -> None:
    with pytest.raises(AssertionError):
        ThatStartsGainsAtZero().test_every_parameter_starts_as_the_plan_says()
