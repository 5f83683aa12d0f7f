"""Uploads models to the Hub of Hugging Face, with their plan in the model card."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from mssp._constraints import a_module, switch, takes, word
from mssp.apply.description import unwrapped
from mssp.hf.hub import is_on_the_hub
from mssp.hf.saving import save_pretrained
from mssp.planning.configs import STORED
from mssp.planning.plans import Plan

if TYPE_CHECKING:
    from huggingface_hub import ModelCard


@takes(model=a_module, repo=word, folded=switch, private=switch)
def push(model: nn.Module, repo: str, *, folded: bool = True, private: bool = False) -> str:
    """Upload a model to the Hub with its plan in the model card and in ``plan.json``; returns the address.

    Args:
        repo: the name of the repository, as ``owner/name``. It is made if it is not there; of a card that is there the
            part about the plan alone is written anew.
        folded: upload a checkpoint that computes the same without ``mssp`` (see :func:`mssp.hf.save_pretrained`).
        private: make a new repository private.
    """
    from huggingface_hub import HfApi

    model = unwrapped(model)
    kept = getattr(getattr(model, "config", None), STORED, None)
    if not isinstance(kept, Mapping) or "plan" not in kept:
        raise ValueError(
            f"{type(model).__name__} keeps no plan to write into the card: call mssp.hf.adapt(model, base, plan) first"
        )
    if not is_on_the_hub(repo):
        raise ValueError(f"repo must be the name of a repository on the Hub, as owner/name, got {repo!r}")
    plan = Plan.from_json(json.dumps(kept["plan"]))
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, folded=folded)
        Path(folder, "plan.json").write_text(plan.json() + "\n", encoding="utf-8")
        api = HfApi()
        name = api.create_repo(repo, exist_ok=True, private=private).repo_id
        _card_with_plan(name, plan, folded).save(Path(folder, "README.md"))
        return str(api.upload_folder(repo_id=name, folder_path=folder, commit_message="A model with its plan by mssp"))


_BEGIN, _END = "<!-- mssp: plan -->", "<!-- mssp: end of plan -->"


def _card_with_plan(repo: str, plan: Plan, folded: bool) -> ModelCard:
    """The repository's model card, or a new one, with a part that has the plan."""
    from huggingface_hub import ModelCard, ModelCardData
    from huggingface_hub.errors import EntryNotFoundError

    try:
        card: ModelCard = ModelCard.load(repo)
    except EntryNotFoundError:
        data = ModelCardData(library_name="transformers", tags=["mssp"])
        card = ModelCard(f"---\n{data.to_yaml()}\n---\n\n# {repo.rpartition('/')[2]}\n")
    use = (
        "Factors of the forward pass are folded into the weights: the model needs nothing but transformers."
        if folded
        else "After `from_pretrained`, `mssp.hf.adapt(model)` puts the factors of the forward pass back."
    )
    said = f"## How it was scaled\n\nInitialized and trained by a plan of `mssp`. {use}\n\n{plan.markdown()}"
    before, _, rest = card.text.partition(_BEGIN)
    card.text = f"{before.rstrip()}\n\n{_BEGIN}\n{said}\n{_END}\n{rest.partition(_END)[2].lstrip()}"
    return card
