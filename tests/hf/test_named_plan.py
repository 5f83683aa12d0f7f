"""Plans over two configs: the table by parameter name, and what the paper does not cover."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

import mssp
from mssp.cli import main
from mssp.planning.configs import outside_the_paper

OLMOE = {"model_type": "olmoe", "hidden_size": 64, "intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}  # fmt: skip
GROWN = {"hidden_size": 256, "intermediate_size": 128, "num_experts": 32, "num_experts_per_tok": 8,
         "num_attention_heads": 16, "num_key_value_heads": 8}  # fmt: skip


def written(folder: Path, name: str, config: dict[str, Any]) -> str:
    path = folder / name / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def run(
    capsys: pytest.CaptureFixture[str], folder: Path, base: dict[str, Any], target: dict[str, Any], *flags: str
) -> tuple[int, str, str]:
    files = [written(folder, "small", base), str(Path(written(folder, "large", target)).parent)]
    code = main(["plan", "--base-config", files[0], "--target-config", files[1], "--lr", "4e-3", *flags])
    out, err = capsys.readouterr()
    return code, out, err


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each parameter, shapes left out."""
    cells_of = {}
    for line in text.splitlines():
        name, _, rest = line.partition("  ")
        if name.startswith(("model.", "lm_head")):
            cells = [cell.strip() for cell in rest.strip().split("  ") if cell.strip()]
            cells_of[name] = cells[1:]
    return cells_of


def test_the_table_is_by_parameter_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, tmp_path, OLMOE, OLMOE | GROWN, "--weight-decay", "0.1", "--init-std", "0.02")
    assert (code, err) == (0, "")
    assert out.startswith("MSSP, Regime III, AdamW\n")
    table = rows(out)
    # N and N_e x4, so lr / 4, std / 2, wd x4; eps / 4 for N (or M) alone, / 16 for both.
    assert table["model.layers.*.self_attn.k_proj.weight"] == ["hidden", "0.01", "0.001", "2.5e-09", "0.4"]
    assert table["model.layers.*.self_attn.q_norm.weight"] == ["norm", "1", "0.004", "2.5e-09", "0"]
    assert table["model.layers.*.mlp.gate.weight"] == ["router", "0.01", "0.001", "2.5e-09", "0.4"]
    assert table["model.layers.*.mlp.experts.gate_up_proj"] == ["expert_in", "0.01", "0.001", "6.25e-10", "0.4", "tied"]
    assert table["lm_head.weight"] == ["readout", "0", "0.001", "1e-08", "0.4", "zero"]
    assert "outputs multiplied" not in out  # gates are shares, and the depth stays


def test_factors_are_shown_with_what_they_are_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    base = CONFIG_MAPPING["dots1"](
        hidden_size=64, moe_intermediate_size=32, intermediate_size=64, n_routed_experts=4, num_experts_per_tok=2,
        n_shared_experts=1, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
        first_k_dense_replace=1, vocab_size=64,
    ).to_dict()  # fmt: skip
    grown = {"hidden_size": 128, "n_routed_experts": 8, "num_experts_per_tok": 4, "num_attention_heads": 8}
    target = base | grown | {"num_key_value_heads": 8, "num_hidden_layers": 3, "intermediate_size": 128}
    del base["layer_types"], target["layer_types"]
    code, out, err = run(capsys, tmp_path, base, target, "--regime", "II")
    assert code == 0
    assert out.splitlines()[-4:] == [
        "outputs multiplied by hooks",
        "  × 0.6667  model.layers.*.self_attn  (residual)",
        "  × 0.6667  model.layers.*.mlp  (residual)",
        "  × 0.5  model.layers.*.mlp.experts  (aggregation)",
    ]
    assert "shared experts are outside the paper's theory" in err
    assert rows(out)["model.layers.*.mlp.shared_experts.down_proj.weight"][-1] == "derived"  # its input does not grow


def test_blocks_that_differ_are_told_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # MiMo's blocks with a sliding window have more key heads than those without.
    sizes = {
        "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "v_head_dim": 16, "vocab_size": 64, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    }  # fmt: skip
    base = CONFIG_MAPPING["mimo_v2_flash"](**sizes).to_dict()
    grown = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64, "num_attention_heads": 8}
    target = CONFIG_MAPPING["mimo_v2_flash"](**(sizes | grown | {"num_key_value_heads": 4})).to_dict()
    code, out, _ = run(capsys, tmp_path, base, target, "--scheme", "mup", "--regime", "I")
    assert code == 0
    table = rows(out)
    assert {"model.layers.0.self_attn.k_proj.weight", "model.layers.1-3.self_attn.k_proj.weight"} <= table.keys()
    assert "model.layers.*.self_attn.q_proj.weight" in table


def test_own_starts_and_scaled_gradients(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4,
        "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "vocab_size": 64,
    }  # fmt: skip
    config = CONFIG_MAPPING["qwen3_next"](**sizes).to_dict()
    code, out, err = run(capsys, tmp_path, config, config, "--regime", "II", "--grad-scale")
    assert code == 0
    table = rows(out)
    assert table["model.layers.*.linear_attn.A_log"][:2] == ["bias", "own"]
    assert table["model.layers.*.input_layernorm.weight"][1] == "0"  # it multiplies by 1 + weight
    assert "grad scale" in out
    assert "gates are renormalised" in err
    assert "shared experts" in err


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"num_attention_heads": 8}, {"num_attention_heads": 4}, "the size of a head changes from 8 to 16"),
        ({"norm_topk_prob": False}, {"norm_topk_prob": True}, "norm_topk_prob changes from False to True"),
        (
            {"routed_scaling_factor": 1.0},
            {"routed_scaling_factor": 2.5},
            "routed_scaling_factor changes from 1.0",
        ),
        (
            {"tie_word_embeddings": False},
            {"tie_word_embeddings": True},
            "tie_word_embeddings changes from False",
        ),
        (
            {"model_type": "olmoe"},
            {"model_type": "mixtral"},
            "of different families: olmoe, mixtral",
        ),
        ({}, {"shared_intermediate_size": 8}, "shared experts are outside the paper's theory"),
        ({}, {"model_type": "deepseek_v3"}, "gates are renormalised"),
        ({}, {"model_type": "x", "route_norm": True}, "gates are renormalised"),
    ],
)
def test_notes(before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    assert any(text in note for note in outside_the_paper(OLMOE | before, OLMOE | after))
    assert not any(text in note for note in outside_the_paper(OLMOE | before, OLMOE | before))


def test_a_flag_counts_for_more_than_the_family() -> None:
    assert outside_the_paper(None, OLMOE | {"model_type": "deepseek_v3", "norm_topk_prob": False}) == []


def test_without_a_base_the_target_is_noted_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path, "large", OLMOE | {"norm_topk_prob": True})
    assert main(["plan", "--target-config", file, "--lr", "1", "--regime", "III", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "gates are renormalised" in err
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(out, encoding="utf-8")
    assert main(["plan", "--extend", str(plan_file), "--target-config", file, "--json"]) == 0
    assert "gates are renormalised" in capsys.readouterr().err
    plan_file.write_text("[", encoding="utf-8")
    assert main(["plan", "--extend", str(plan_file), "--target-config", file]) == 2
    assert f"{plan_file}: not a plan file" in capsys.readouterr().err


def test_published_configs_can_be_planned(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # Of published weights: quantised, with an attention that is not installed here.
    published = {"quantization_config": {"quant_method": "mxfp4"}, "_attn_implementation": "flash_attention_2"}
    code, out, _ = run(capsys, tmp_path, OLMOE, OLMOE | GROWN | published)
    assert code == 0
    assert "model.layers.*.mlp.experts.down_proj" in out


def test_what_the_paper_does_not_cover_is_warned_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = OLMOE | GROWN | {"num_experts_per_tok": 4, "norm_topk_prob": True, "n_shared_experts": 2, "head_dim": 32}
    _, out, err = run(capsys, tmp_path, OLMOE | {"head_dim": 16}, target, "--regime", "III", "--json")
    for text in (
        "the active share K/M changes from 2/8 to 4/32",
        "M/K, grow from 4 to 8: ever sparser routing is a limit that the paper leaves open",
        "shared experts are outside the paper's theory",
        "gates are renormalised to sum to one",
        "the size of a head changes from 16 to 32",
    ):
        assert err.count(text) == 1
        assert sum(text in warning for warning in json.loads(out)["warnings"]) == 1
    assert mssp.Plan.from_json(out).regime == "III"  # a plan file like any other


def test_markdown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = run(capsys, tmp_path, OLMOE, OLMOE | GROWN, "--markdown", "--optimizer", "sgd")
    assert "| parameter | shape | role | init std | lr | note |" in out
    assert "| model.layers.*.mlp.experts.down_proj | 32 × 256 × 128 | expert_out |" in out


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"rope_parameters": 3}, "transformers cannot make a model of this config: "),
        ({"model_type": "nothing"}, "model_type 'nothing' is not one that transformers knows"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"num_local_experts": 16}, "num_local_experts is 16, num_experts is 8"),
        ({"model_type": ["olmoe"]}, "a config's model_type is a name, got ['olmoe']"),
        ({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 4}, "leaves 2 to choose from"),
        ({"hidden_size": "wide"}, "hidden_size must be a positive whole number, got 'wide'"),
    ],
)
def test_configs_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: dict[str, Any], message: str
) -> None:
    code, out, err = run(capsys, tmp_path, OLMOE, OLMOE | target, "--regime", "III")
    assert (code, out) == (2, "")
    assert err.startswith("mssp: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_without_a_table_by_name_the_plan_is_by_role(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    jamba = OLMOE | GROWN | {"model_type": "jamba"}
    code, out, err = run(capsys, tmp_path, OLMOE, jamba, "--regime", "III")
    assert code == 0
    assert out.startswith("MSSP, Regime III, AdamW")
    reason = "the base is a olmoe, the model a jamba: base and target must be of one architecture"
    assert f"mssp: warning: there is no table by parameter name: {reason}\n" in err
    again = tmp_path / "again"
    again.mkdir()
    code, out, err = run(capsys, again, OLMOE, jamba, "--regime", "III", "--json", "--by-name")
    assert (code, out) == (2, "")
    assert err.endswith(f"mssp: error: {reason}\n")


def test_without_transformers_the_plan_is_by_role(tmp_path: Path) -> None:
    files = [written(tmp_path, "small", OLMOE), written(tmp_path, "large", OLMOE | GROWN)]
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from mssp.cli import main\n"
        f"main(['plan', '--base-config', {files[0]!r}, '--target-config', {files[1]!r}, '--lr', '1'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "expert_out" in done.stdout
    assert done.stderr == "mssp: warning: to see the plan by parameter name, install mssp[hf]\n"


def test_a_plan_over_configs_warns_in_python_too() -> None:
    with pytest.warns(mssp.PlanWarning, match="shared experts"):
        plan = mssp.hf.plan(OLMOE | GROWN | {"n_shared_experts": 1}, OLMOE, lr=1.0)
    assert any("shared experts" in warning for warning in plan.warnings)
    assert "model.layers.*.mlp.experts.down_proj" in str(mssp.hf.by_name(plan, OLMOE | GROWN, OLMOE))
