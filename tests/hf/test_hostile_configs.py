"""Configs that no model can be made of: one line names the file, and the key where it can be known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mssp.cli.commands import main

SMALL = {
    "model_type": "olmoe", "hidden_size": 64, "intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 4,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64, "eos_token_id": 1,
}  # fmt: skip
LARGE = SMALL | {"hidden_size": 128, "num_experts": 16, "num_experts_per_tok": 8}
PLAN = ["plan", "--lr", "0.01", "--regime", "III"]
NO_MODEL = "transformers cannot make a model of this config: "
ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "dtype, a list": ({"dtype": []}, "dtype must be a type of torch's, as bfloat16, got nothing"),
    "dtype, a word": (
        {"torch_dtype": "nonsense"},
        "torch_dtype must be a type of torch's, as bfloat16, got 'nonsense'",
    ),
    "a function": ({"to_dict": 3}, "to_dict is a function of transformers' configs, and cannot be an entry of one"),
    "layers": ({"num_hidden_layers": 2**53}, f"num_hidden_layers must be at most 500 .*, got {2**53}"),
    "size, NaN": ({"hidden_size": float("nan")}, "hidden_size must be a positive whole number, got nan"),
    "size, digits": ({"hidden_size": 2**70}, "hidden_size must be a positive whole number, got a number of 22 digits"),
    "size, a list": ({"num_experts": [8]}, r"num_experts must be a positive whole number, got \[8\]"),
    "size, a word": ({"vocab_size": "x"}, rf"{NO_MODEL}.*Field 'vocab_size' expected int.* \(is it vocab_size, .*"),
    "too large": ({"intermediate_size": 2**50}, rf"{NO_MODEL}.*\(is it intermediate_size, which is {2**50}\?\)"),
    "an activation": (
        {"hidden_act": "zzz"},
        rf"{NO_MODEL}it does not know 'zzz' \(is it hidden_act, which is 'zzz'\?\)",
    ),
    "one in another": ({"rope_scaling": {"type": "zzz"}}, rf"{NO_MODEL}it does not know 'zzz' \(is it rope_param.*"),
    "a kind": ({"use_cache": []}, rf"{NO_MODEL}.*\(is it use_cache, which is nothing\?\)"),
    "groups": ({"n_group": 0, "topk_group": 0}, "n_group must be a positive whole number, got 0"),
    "a part for text": ({"hidden_size": None, "text_config": {"model_type": []}}, r"a config's model_type is a name.*"),
    "deep": ({"x": json.loads("[" * 900 + "]" * 900)}, "it is nested more than 32 deep"),
}
TEXTS = {
    "twice": (json.dumps(LARGE).encode()[:-1] + b', "num_experts": 32}', "'num_experts' is there twice: 16 and 32"),
    "not UTF-8": (json.dumps(LARGE).encode("utf-16"), "expected JSON in UTF-8"),
    "deeper than the stack": (b"[" * 100_000, "maximum recursion depth exceeded .*"),
    "no object": (b"null", "expected a JSON object"),
}


def refused(capsys: pytest.CaptureFixture[str], small: Path, large: Path) -> str:
    code = main([*PLAN, "--base-config", str(small), "--target-config", str(large)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    return err


def written(path: Path, config: dict[str, Any]) -> Path:
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ENTRIES)
def test_entries_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str) -> None:
    changes, message = ENTRIES[kind]
    small, large = written(tmp_path / "small.json", SMALL), written(tmp_path / "large.json", LARGE | changes)
    err = refused(capsys, small, large)
    assert re.fullmatch(rf"mssp: error: {re.escape(str(large))}: {message}\n", err), err


def test_the_file_of_the_base_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It fails while a model of the base is built, long after it was read."""
    small, large = written(tmp_path / "small.json", SMALL | {"hidden_act": "zzz"}), written(tmp_path / "a.json", LARGE)
    assert refused(capsys, small, large).startswith(f"mssp: error: {small}: {NO_MODEL}")


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_that_are_no_config(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str) -> None:
    content, message = TEXTS[kind]
    (tmp_path / "large.json").write_bytes(content)
    err = refused(capsys, written(tmp_path / "small.json", SMALL), tmp_path / "large.json")
    assert re.fullmatch(rf"mssp: error: {re.escape(str(tmp_path / 'large.json'))}: {message}\n", err), err


def test_labels_are_not_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A plan depends on none of them, and transformers would make a name for each."""
    small, large = written(tmp_path / "s.json", SMALL), written(tmp_path / "l.json", LARGE | {"num_labels": 10**9})
    assert main([*PLAN, "--base-config", str(small), "--target-config", str(large)]) == 0
    assert "model.layers.*.mlp.gate.weight" in capsys.readouterr().out


def test_experts_that_are_too_many_to_run_a_router(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small, large = written(tmp_path / "s.json", SMALL), written(tmp_path / "l.json", LARGE | {"num_experts": 10**9})
    assert "router has 128,000,000,000 numbers: more than 134,217,728 are too many" in refused(capsys, small, large)


def test_neurons_that_are_too_many_to_run_a_norm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its weights would fit: it is run on 64 vectors, which take 64 times as much."""
    small, large = written(tmp_path / "s.json", SMALL), written(tmp_path / "l.json", LARGE | {"hidden_size": 2**26})
    assert "q_norm.weight has 4,294,967,296 numbers: more than 134,217,728 are too many" in refused(
        capsys, small, large
    )


def test_models_of_too_many_modules_are_not_built(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mssp.hf.meta.MOST_MODULES", 20)
    small, large = written(tmp_path / "s.json", SMALL), written(tmp_path / "l.json", LARGE)
    assert "it has more than 20 modules, which is too many to describe" in refused(capsys, small, large)
