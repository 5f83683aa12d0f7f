"""``mssp data``: token files, which text is made into once, and which training reads."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import tyro

from mssp._tables import align
from mssp.cli import flags, progress

if TYPE_CHECKING:
    from mssp.data import TokenFile

_FOR_ALL = ("action", "files")


@dataclass
class DataCommand:
    """Make a token file of text, or check token files, or show what they hold.

    `mssp data prepare my.jsonl -o tokens.bin` makes one. Without files it reads a dataset of Hugging Face. When it was
    stopped, the same command goes on where it was. `mssp data check tokens.bin` reads all tokens and compares their
    checksum. `mssp data show tokens.bin` says what is in the file.
    """

    action: flags.DataAction
    """prepare, check or show"""
    files: flags.Files = ()
    """text files, .jsonl or .parquet, also packed as .gz or .xz; for check and show, token files"""
    output: Annotated[flags.MaybeKept, tyro.conf.arg(aliases=["-o"], help_behavior_hint="")] = None
    """the token file to write"""
    tokenizer: flags.Tokenizer = "bytes"
    """bytes (the default), gpt2, or a tokenizer.json"""
    vocabulary_files: flags.MaybeFiles = ()
    """GPT-2's vocab.json and merges.txt, or its tokenizer.json (default: downloaded)"""
    end_token: flags.MaybeText = None
    """the token that ends a document, if the tokenizer's files do not say it"""
    dataset: flags.MaybeText = None
    """the dataset, if there are no files (default: allenai/dolma3_mix-150B-1025)"""
    text_field: flags.Text = "text"
    """where rows have their text (default text)"""
    split_on: flags.MaybeText = None
    """cut text files into documents where this text stands (default: each file is one document)"""
    validation: flags.Share = 0.02
    """share of documents for validation, which a hash of their text chooses (default 0.02)"""
    tokens: flags.MaybeSize = None
    """stop behind the document that makes it so many tokens"""

    def run(self) -> int:
        if self.action == "prepare":
            return self._prepare()
        self._refuse_flags()
        if not self.files:
            raise ValueError(f"no file given: mssp data {self.action} tokens.bin")
        return self._check() if self.action == "check" else self._show()

    def _refuse_flags(self) -> None:
        """What only a preparation takes has no effect elsewhere."""
        for field in fields(self):
            if field.name not in _FOR_ALL and getattr(self, field.name) != field.default:
                raise ValueError(f"--{field.name.replace('_', '-')} does not go with {self.action}: it is for prepare")

    def _prepare(self) -> int:
        from mssp.data import prepare

        if self.output is None:
            raise ValueError("--output is missing: name the token file to write, as -o tokens.bin")
        by_tokens = self.tokens is not None or not self.files
        total = self.tokens if by_tokens else sum(file.stat().st_size for file in self.files)
        title = f"preparing {self.output}"
        with progress.Progress(title, total, "tokens" if by_tokens else "bytes") as display:
            try:
                file = prepare(
                    self.files,
                    self.output,
                    dataset=self.dataset,
                    tokenizer=self.tokenizer,
                    vocabulary_files=self.vocabulary_files,
                    end_token=self.end_token,
                    text_field=self.text_field,
                    split_on=self.split_on,
                    validation_share=self.validation,
                    tokens=self.tokens,
                    advance=display.advance,
                )
            except KeyboardInterrupt as stop:
                stop.add_note("run the same command again, which goes on from here")
                raise
        if file.empty:
            print(f"mssp: warning: documents without text were left out: {file.empty:,}", file=sys.stderr)
        for part in ("train", "validation"):
            if not len(file.stretches(part)):
                print(f"mssp: warning: no document is for {part}: {_more(file)}", file=sys.stderr)
        progress.show_lines(_table([file]))
        return 0

    def _check(self) -> int:
        from mssp.data import token_file

        opened = [token_file(path) for path in self.files]
        total = sum(file.tokens * file.array.itemsize for file in opened)
        with progress.Progress("checking", total, "bytes") as display:
            for file in opened:
                file.check(display.advance)
        for file in opened:
            print(f"{file.path} is whole: {file.tokens:,} tokens, {file.documents:,} documents, {file.checksum}")
        return 0

    def _show(self) -> int:
        from mssp.data import token_file

        progress.show_lines(_table([token_file(path) for path in self.files]))
        return 0


def _more(file: TokenFile) -> str:
    if file.documents == 1:
        return "there is one, cut it by --split-on"
    return f"there are {file.documents}, give more, or another --validation"


def _table(files: list[TokenFile]) -> list[str]:
    """What token files hold: a row for each file and part."""
    rows: list[tuple[str, ...]] = [
        ("file", "part", "documents", "tokens", "vocabulary", "tokenizer", "checksum", "source")
    ]
    for file in files:
        of_file = (f"{file.vocabulary:,}", file.tokenizer, file.checksum, file.source)
        documents = {"train": file.documents - file.validation_documents, "validation": file.validation_documents}
        for part, count in documents.items():
            stretches = file.stretches(part)
            tokens = int((stretches[:, 1] - stretches[:, 0]).sum())
            rest = of_file if part == "train" else ("",) * len(of_file)
            name = str(file.path) if part == "train" else ""
            rows.append((name, part, f"{count:,}", f"{tokens:,}", *rest))
    return align(rows)
