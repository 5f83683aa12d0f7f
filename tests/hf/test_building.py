"""Models in one call, from the config to the Hub, and how the base itself is tuned."""

from __future__ import annotations

import copy
import sys
import types
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.errors import EntryNotFoundError
from transformers import AutoModelForCausalLM

import mssp
from tests.hf.tiny_models import BASE, TARGET, config_of, initialized, logits, model_of, plan_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:experts start alike:mssp.PlanWarning", "ignore:gates are renormalised:mssp.PlanWarning",
    "ignore:shared experts are outside:mssp.PlanWarning", "ignore:without mssp this checkpoint:mssp.PlanWarning",
)  # fmt: skip


# -- from a config ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["olmoe", "afmoe", "ernie4_5_moe"])
def test_a_model_in_one_call(family: str) -> None:
    config, base = config_of(family, TARGET, dtype="bfloat16"), config_of(family, BASE)
    before = copy.deepcopy(config.to_dict())
    by_hand = model_of(config_of(family, TARGET))
    mssp.hf.adapt(by_hand, base)
    initialized(by_hand, plan_of(readout="mup"), seed=3)
    model = mssp.hf.from_config(config, plan_of(readout="mup"), base=base, seed=3)
    assert model.training
    expected = by_hand.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(logits(model.eval()), logits(by_hand))
    mssp.verify(model, torch.optim.AdamW(mssp.param_groups(model, plan_of(readout="mup"))), plan_of(readout="mup"))
    assert config.to_dict() == before
    with_lr: Any = mssp.hf.from_config(config, base=base, lr=2e-3, regime="III", init_std=0.02)
    assert with_lr.config.mssp["plan"]["lr"] == 2e-3
    assert not with_lr.get_parameter("model.embed_tokens.weight")[0].any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "say by what to initialize: a plan, or the base's config and lr, from which one is made"),
        ({"lr": 1e-3}, "say by what to initialize: a plan, or the base's config and lr, from which one is made"),
        ({"plan": plan_of(), "lr": 1e-3, "regime": "III"}, "a plan has all numbers: leave out lr, regime"),
        ({"plan": plan_of(BASE, BASE)}, "the plan is for another model"),
        (
            {"plan": plan_of(), "shard": lambda model: None},
            "has a readout that is tied to the embedding, which fully_sh",
        ),
    ],
)
def test_what_no_model_is_built_of(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mssp.hf.from_config(config_of("ernie4_5_moe", TARGET), **given)


# -- optimizers -------------------------------------------------------------------------------------------------------


def test_a_fused_step_is_torch_s_own() -> None:
    model = mssp.hf.from_config(config_of("olmoe", TARGET), plan_of(), base=config_of("olmoe", BASE))
    make, arguments = mssp.hf.optimizer_factory(plan_of(), fused=True)
    optimizer = make()(model, **arguments)
    assert optimizer.defaults["fused"]
    mssp.verify(model, optimizer, plan_of())


class AdamW8bit(torch.optim.Optimizer):
    """Stands for the one of bitsandbytes or torchao."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})


@pytest.mark.parametrize("library", ["bitsandbytes", "torchao"])
def test_averages_in_eight_bits_are_of_the_library_that_is_installed(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mssp.hf.from_config(config_of("olmoe", TARGET), plan_of(), base=config_of("olmoe", BASE))
    for name in ("bitsandbytes.optim", "torchao.optim"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match="eight_bit needs bitsandbytes or torchao, and neither is installed"):
        mssp.hf.optimizer_factory(plan_of(), eight_bit=True)
    package, module = types.ModuleType(library), types.ModuleType(f"{library}.optim")
    vars(module)["AdamW8bit"] = AdamW8bit
    for each in (package, module):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    make, arguments = mssp.hf.optimizer_factory(plan_of(), eight_bit=True)
    optimizer = make()(model, **arguments)
    assert type(optimizer) is AdamW8bit
    assert {group["lr"] for group in optimizer.param_groups} == {1e-3, 5e-4, 1e-3 / 3}
    mssp.verify(model, optimizer, plan_of())
    with pytest.raises(ValueError, match="fused is a step of torch's own optimizers"):
        mssp.hf.optimizer_factory(plan_of(), eight_bit=True, fused=True)
    with pytest.raises(ValueError, match="eight_bit is for Adam and AdamW, whose averages it keeps: sgd has none"):
        mssp.hf.optimizer_factory(plan_of(optimizer="sgd", weight_decay=0.0), eight_bit=True)


# -- to the Hub -------------------------------------------------------------------------------------------------------


class Hub:
    """Stands for the Hub: repositories are folders."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, list[str]()

    def create_repo(self, repo: str, *, exist_ok: bool, private: bool) -> Any:
        self.calls.append(f"create {repo} {exist_ok} {private}")
        return types.SimpleNamespace(repo_id=repo)

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> str:
        self.calls.append(f"upload {repo_id}")
        (self.folder / repo_id).mkdir(parents=True, exist_ok=True)
        for file in Path(folder_path).iterdir():
            (self.folder / repo_id / file.name).write_bytes(file.read_bytes())
        return f"https://hub/{repo_id}"

    def load(self, repo: str) -> ModelCard:
        if not (self.folder / repo / "README.md").exists():
            raise EntryNotFoundError("no card")
        return ModelCard((self.folder / repo / "README.md").read_text())


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    stand_in = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: stand_in)
    monkeypatch.setattr(ModelCard, "load", stand_in.load)
    return stand_in


def test_a_model_goes_to_the_hub_with_its_plan(hub: Hub) -> None:
    plan = plan_of(readout="mup", aggregation_mult=1.5)
    model = mssp.hf.from_config(config_of("dots1", TARGET), plan, base=config_of("dots1", BASE)).eval()
    assert mssp.hf.push(model, "someone/large") == "https://hub/someone/large"
    assert hub.calls == ["create someone/large True False", "upload someone/large"]
    folder = hub.folder / "someone/large"
    card = ModelCard((folder / "README.md").read_text())
    data: Any = card.data
    assert (data.library_name, data.tags) == ("transformers", ["mssp"])
    assert card.text.count(plan.markdown()) == 1
    assert "the model needs nothing but transformers" in card.text
    assert mssp.Plan.from_json((folder / "plan.json").read_text()) == plan
    read = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.testing.assert_close(logits(read), logits(model), rtol=1e-4, atol=1e-6)

    # What others wrote into the card stays, and the part about the plan is written anew.
    (folder / "README.md").write_text(f"{card.content}\n## Data\n\nBooks.\n".replace("# large", "# Our model"))
    mssp.initialize(model, plan_of(readout="mup"))
    mssp.hf.push(model, "someone/large", folded=False, private=True)
    text = (folder / "README.md").read_text()
    assert text.count("## How it was scaled") == text.count("# Our model") == text.count("Books.") == 1
    assert plan.markdown() not in text
    assert plan_of(readout="mup").markdown() in text
    assert "`mssp.hf.adapt(model)` puts the factors of the forward pass back" in text
    again = AutoModelForCausalLM.from_pretrained(folder).eval()
    mssp.hf.adapt(again)
    assert torch.equal(logits(again), logits(model))


def test_what_is_not_uploaded(hub: Hub) -> None:
    model = model_of(config_of("olmoe", TARGET))
    with pytest.raises(ValueError, match="OlmoeForCausalLM keeps no plan to write into the card: call mssp"):
        mssp.hf.push(model, "someone/large")
    mssp.hf.adapt(model, base=config_of("olmoe", BASE), plan=plan_of())
    with pytest.raises(ValueError, match="repo must be the name of a repository on the Hub, as owner/name"):
        mssp.hf.push(model, "large")
    assert hub.calls == []


# -- tuning the base --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["extend", "from itself"])
def test_the_base_is_tuned_by_the_rules_of_the_plan(way: str) -> None:
    small, large = config_of("olmoe", BASE), config_of("olmoe", TARGET)
    if way == "extend":
        plan = mssp.hf.plan(large, small, lr=1e-3, regime="III").extend(mssp.Shape.from_config(small))
    else:
        plan = mssp.hf.plan(small, small, lr=1e-3, regime="III")
    model = mssp.hf.from_config(small, plan, base=small)
    groups = mssp.param_groups(model, plan)
    assert {(group["lr"], group["eps"], group["lr_scale"]) for group in groups} == {(1e-3, 1e-8, 1.0)}
    assert {vars(module)["mssp_factor"] for module in model.modules() if "mssp_factor" in vars(module)} == {1.0}
    assert torch.equal(*model.get_parameter("model.layers.0.mlp.experts.down_proj")[:2])  # as in Regime III
