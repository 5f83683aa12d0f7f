"""Tokenizers, small ones made here: GPT-2's own files are not in the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mssp.data import prepare, tokenizer_of
from mssp.data import tokenizer as module
from mssp.data.tokenizer import named_tokenizer

# "low" is one token, and a space before it another; all other bytes stand for themselves.
LETTERS = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
VOCABULARY = {**LETTERS, "lo": 256, "low": 257, "Ġlow": 258, "ĊĊ": 259}
MERGES = [("l", "o"), ("lo", "w"), ("Ġ", "low"), ("Ċ", "Ċ")]


def small(*special: str) -> Any:
    tokenizer = Tokenizer(models.BPE(VOCABULARY, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def saved(folder: Path, *special: str) -> Path:
    small(*special).save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_any_file_of_tokenizers_is_used(tmp_path: Path) -> None:
    found = named_tokenizer(str(saved(tmp_path, "</s>")))
    assert (found.vocabulary, found.end) == (261, 260)
    assert found.name.startswith("tokenizer.json, ")
    tokens, lengths = found.encode([b"low low", "ü".encode()])
    assert tokens.tolist() == [257, 258, 260, VOCABULARY["Ã"], VOCABULARY["¼"], 260]
    assert (tokens.dtype.name, lengths.tolist()) == ("uint16", [3, 3])
    assert found.decode([257, 258]) == "low low"


def test_a_document_that_speaks_of_the_end_does_not_end_there(tmp_path: Path) -> None:
    tokens, _ = named_tokenizer(str(saved(tmp_path, "</s>"))).encode([b"a</s>"])
    assert tokens.tolist() == [*(VOCABULARY[letter] for letter in "a</s>"), 260]


def test_limits_of_a_tokenizer_are_those_of_models_and_not_of_documents(tmp_path: Path) -> None:
    tokenizer = small("</s>")
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokens, _ = named_tokenizer(str(tmp_path / "tokenizer.json")).encode([b"low low low low"])
    assert tokens.tolist() == [257, 258, 258, 258, 260]


def test_long_documents_are_encoded_in_pieces_without_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"low low.\n\n\nlow \nlow'll\n" * 50
    path = str(saved(tmp_path, "</s>"))
    at_once, _ = named_tokenizer(path).encode([text, b"low"])
    for size in (1, 7, 100):
        monkeypatch.setattr(module, "_PIECE", size)
        in_pieces, lengths = named_tokenizer(path).encode([text, b"low"])
        assert in_pieces.tolist() == at_once.tolist()
        assert lengths.tolist() == [len(at_once) - 2, 2]
    # Cut behind the line end, two line ends would be one token.
    assert small().encode("\n\nlow").ids != [*small().encode("\n\n").ids, *small().encode("low").ids]


@pytest.mark.parametrize(
    ("special", "config", "said", "end"),
    [
        (["</s>", "<eos>"], {"eos_token": "<eos>"}, None, 261),
        (["</s>"], {"eos_token": {"content": "</s>", "lstrip": False}}, None, 260),
        (["</s>", "<eos>"], {"eos_token": "<eos>"}, "</s>", 260),
        (["[STOP]"], None, "[STOP]", 260),
        (["</s>"], {"eos_token": None}, None, 260),
    ],
)
def test_the_end_of_a_document(tmp_path: Path, special: list[str], config: Any, said: str | None, end: int) -> None:
    path = saved(tmp_path, *special)
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert named_tokenizer(str(path), end=said).end == end


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    path, words = saved(tmp_path), tmp_path / "words.txt"
    (tmp_path / "two").mkdir()
    words.write_text("words")
    vocabulary, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    small().model.save(str(tmp_path))
    refused: list[tuple[Any, str]] = [
        (
            (str(path),),
            "not say which token ends a document, and it has none of the usual names: say it by --end-",
        ),
        (
            (str(saved(tmp_path / "two", "</s>", "<eos>")),),
            "a document, and it has </s> and <eos>: say it by --end-",
        ),
        ((str(path), (), "[STOP]"), r"the end of a document must be a token of .*tokenizer.json, got '\[STOP\]'"),
        ((str(words),), "words.txt must be a tokenizer.json, as the library tokenizers writes it: "),
        ((str(tmp_path / "none.json"),), "none.json does not exist: a file is needed"),
        (("gpt2", [vocabulary, merges]), "vocab.json, .*merges.txt must be GPT-2's vocabulary, got another's"),
        (("gpt2", [merges, vocabulary, path]), "must be vocab.json and merges.txt, or a tokenizer.json, got 3"),
        (("gpt2", [words]), "words.txt cannot be read as GPT-2's vocabulary and merges: "),
        (("gpt2", [words], "</s>"), r"the end of a document must be <\|endoftext\|> for gpt2, got '</s>'"),
        (("bytes", [words]), "the tokenizer bytes has no files"),
        (("bytes", (), "</s>"), "the tokenizer bytes has no other end than the zero byte"),
        ((str(path), [words]), "vocabulary files are GPT-2's: give .*tokenizer.json alone, or the tokenizer gpt2"),
    ]
    for arguments, message in refused:
        with pytest.raises(ValueError, match=message):
            named_tokenizer(*arguments)


def test_a_token_file_holds_its_tokenizer(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("low ü low")
    path = saved(tmp_path, "</s>")
    file = prepare([text], tmp_path / "tokens.bin", tokenizer=str(path))
    path.unlink()
    assert tokenizer_of(file).decode(file.array) == "low ü low</s>"
    assert tokenizer_of(file).encode([b"low"])[0].tolist() == [257, 260]
