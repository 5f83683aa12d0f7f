"""``mssp generate``: a model that ``mssp train`` trained goes on with a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mssp._environment import pick_device
from mssp.cli import flags
from mssp.planning.recipe import without_plan_warnings

if TYPE_CHECKING:
    from torch import Tensor

    from mssp.data.tokenizer import Tokenizer


@dataclass
class GenerateCommand:
    """Go on with a text, by the newest checkpoint of a run of mssp train.

    The text ends where the model ends a document, or after --length tokens.
    """

    checkpoint: flags.RunFolder = Path("run")
    """the folder of the run, the --out of mssp train (default run)"""
    prompt: flags.Text = ""
    """the text to go on with (default: the start of a document)"""
    length: flags.Size = 400
    """the most tokens to add (default 400)"""
    temperature: flags.NotNegative = 0.8
    """how freely tokens are drawn: 0 takes the likeliest, 1 the model's own probabilities (default 0.8)"""
    top_k: flags.MaybeSize = None
    """draw one of so many likeliest tokens (default: any)"""
    seed: flags.Seed = 0
    """of the random numbers"""
    data: flags.MaybeText = None
    """the token file that the run read, if it is no longer where it was: the tokenizer is in it"""
    device: flags.Device = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1"""

    def run(self) -> int:
        import torch

        from mssp.train import load_model

        with without_plan_warnings():
            model, name = load_model(self.checkpoint)
        tokenizer = self._tokenizer(name)
        device = pick_device(self.device)
        # A document starts behind the end of another.
        prompt = [tokenizer.end, *tokenizer.encode([self.prompt.encode()])[0].tolist()[:-1]]
        tokens = torch.tensor([prompt], device=device)
        added = self._continued(model.to(device), tokens)[0, len(prompt) :].tolist()
        print(self.prompt + tokenizer.decode(_of_one_document(added, tokenizer)))
        return 0

    def _tokenizer(self, name: str) -> Tokenizer:
        """The tokenizer of the run, which its token file holds; bytes need none."""
        from mssp.data import token_file, tokenizer_of
        from mssp.data.tokenizer import Bytes
        from mssp.train.run_folder import Kept

        if name == Bytes.name:
            return Bytes()
        said = self.data or Kept.read(self.checkpoint).settings.data.tokens
        try:
            file = token_file(said)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"the run's tokenizer is in its token file ({error}): say where it is, as --data"
            ) from None
        if file.tokenizer != name:
            raise ValueError(f"{said} must have the run's tokenizer, {name}, got one of {file.tokenizer}")
        return tokenizer_of(file)

    def _continued(self, model: Any, tokens: Tensor) -> Tensor:
        import torch

        from mssp.nn import GPT

        if isinstance(model, GPT):
            generator = torch.Generator(tokens.device).manual_seed(self.seed)
            return model.generate(tokens, self.length, self.temperature, self.top_k, generator)
        torch.manual_seed(self.seed)  # a model of transformers draws from torch's own random numbers
        drawn = {"do_sample": True, "temperature": self.temperature, "top_k": self.top_k or 0}
        choice = drawn if self.temperature else {"do_sample": False}
        made: Tensor = model.generate(tokens, max_new_tokens=self.length, **choice)
        return made


def _of_one_document(tokens: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The tokens before the first that ends a document; those that a larger vocabulary has beyond are left out."""
    end = tokens.index(tokenizer.end) if tokenizer.end in tokens else len(tokens)
    return [token for token in tokens[:end] if token < tokenizer.vocabulary]
