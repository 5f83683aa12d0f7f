"""Drafts claims for a model: a dictionary to paste, with the reason for each line, and marks where a person decides.

    suggestions = mssp.suggest_claims(model)
    print(suggestions)                        # Python text
    suggestions.claims()                      # the dictionary, once nothing is left to decide

A draft is never applied by itself: every other function takes the claims that a person has read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from torch import nn

from mssp._constraints import a_module, takes
from mssp.apply.description import claimed_by_modules, name_cleaner, trainable
from mssp.apply.patterns import EXPERT, folded, starred
from mssp.hf.expert_guesses import ExpertGuesses
from mssp.hf.guesses import Guess, ModuleGuesses, unknown
from mssp.hf.parameters import infos_of
from mssp.hf.structure import Seen, Structure
from mssp.planning.configs import family_of
from mssp.planning.parameter import ParamInfo
from mssp.planning.rules import BIASES, GAINS

DECIDE = "DECIDE"
_LONGEST = 112  # characters of a line, of which two blanks, a hash and the indentation take eight more


@dataclass(frozen=True)
class Suggestion:
    """One line of a draft.

    Args:
        pattern: stands for the names of the parameters.
        claim: what they may be: a role alone for gains and biases, None if nothing is known.
        reason: why, or what has to be decided.
        certain: whether all clues agree. What is not certain is for a person to decide.
    """

    pattern: str
    claim: ParamInfo | str | None
    reason: str
    certain: bool

    def lines(self) -> list[str]:
        """Python text for an entry of a dictionary; a comment, where a person has to decide."""
        entry = f"{json.dumps(self.pattern, ensure_ascii=False)}: {_as_text(self.claim)},"
        text = entry if self.certain else f"# {entry}"
        reason = " ".join(self.reason.split() if self.certain else [f"{DECIDE}:", *self.reason.split()])
        return [f"{text}  # {reason}"] if len(text) + len(reason) < _LONGEST else [f"# {reason}", text]


@dataclass(frozen=True)
class Suggestions:
    """A draft of the claims of a model: ``str`` is Python text, in which lines to decide are comments."""

    entries: tuple[Suggestion, ...]

    @property
    def undecided(self) -> tuple[Suggestion, ...]:
        """The lines that a person has to decide."""
        return tuple(entry for entry in self.entries if not entry.certain)

    def claims(self) -> dict[str, ParamInfo | str]:
        """The dictionary of claims, if no line is left to decide."""
        if self.undecided:
            first = self.undecided[0]
            more = f", and {len(self.undecided) - 1} more" if len(self.undecided) > 1 else ""
            raise ValueError(f"{first.pattern!r} is to be decided{more}: {first.reason}")
        return {entry.pattern: entry.claim for entry in self.entries if entry.claim is not None}

    def __str__(self) -> str:
        lines = ["import mssp", "", "claims: dict[str, mssp.ParamInfo | str] = {"]
        return "\n".join([*lines, *(f"    {line}" for entry in self.entries for line in entry.lines()), "}"])


@takes(model=a_module)
def suggest_claims(model: nn.Module) -> Suggestions:
    """Draft the claims of a model from the types of its modules, their names, and the sizes of its parameters.

    >>> block = nn.ModuleDict({"norm": nn.RMSNorm(8), "mix": nn.Linear(8, 8, bias=False)})
    >>> blocks = nn.ModuleList([block])
    >>> model = nn.ModuleDict({"embed": nn.Embedding(12, 8), "blocks": blocks, "head": nn.Linear(8, 12)})
    >>> print(suggest_claims(model))
    import mssp
    <BLANKLINE>
    claims: dict[str, mssp.ParamInfo | str] = {
        "embed.weight": mssp.ParamInfo("embedding", layout="vocab out"),  # nn.Embedding: a lookup of 12 rows
        "blocks.*.norm.weight": "norm",  # gain of nn.RMSNorm in a block, of the width
        "blocks.*.mix.weight": mssp.ParamInfo("hidden", layout="out in"),  # nn.Linear in a block
        "head.weight": mssp.ParamInfo("readout", layout="out in"),  # nn.Linear after all blocks: the readout
        "head.bias": "readout_bias",  # bias of nn.Linear after all blocks
    }

    Parameters whose modules describe themselves need no claim and are left out, and so are frozen ones. The model may
    be on the meta device.
    """
    clean = name_cleaner(model)
    described = claimed_by_modules(model, clean)
    parameters = list(trainable(model, clean))
    structure = Structure(model, clean)
    made, known = _Guesses(structure), _of_transformers(model)
    guesses: dict[str, Guess] = {}
    for names, _ in parameters:
        guesses |= _of_one_parameter({name: known.get(name) or made.of(structure.parameters[name]) for name in names})
    missing = {name: guess for name, guess in guesses.items() if name not in described}
    # Lines to decide stand for parameters that differ in numbers alone.
    entries = {
        name: (guess, "" if guess.certain else starred(name))
        for name, guess in _with_experts(missing, structure).items()
    }
    folds = folded(entries, [name for name in guesses if name in described])
    return Suggestions(tuple(_suggestion(pattern, guess) for pattern, (guess, _) in folds.items()))


def _suggestion(pattern: str, guess: Guess) -> Suggestion:
    claim = guess.claim
    bare = claim is not None and claim.role in GAINS | BIASES and claim == ParamInfo(claim.role)
    return Suggestion(pattern, claim.role if claim is not None and bare else claim, guess.reason, guess.certain)


class _Guesses:
    """Guesses at all parameters of a model, each made once."""

    def __init__(self, structure: Structure) -> None:
        self._modules = ModuleGuesses(structure, self.of)
        self._experts = ExpertGuesses(structure)
        self._structure = structure
        self._made: dict[str, Guess] = {}

    def of(self, seen: Seen) -> Guess:
        if seen.name not in self._made:
            guess = self._guess(seen)
            if guess.certain and seen.in_a_list:
                guess = guess.doubted("one of several modules that are alike: experts, heads or layers?")
            self._made[seen.name] = guess
        return self._made[seen.name]

    def _guess(self, seen: Seen) -> Guess:
        if not seen.shape or 0 in seen.shape:
            return unknown("a single number, or none at all: no role covers it")
        kinds = {
            self._modules.of_attention: isinstance(seen.owner, nn.MultiheadAttention),
            self._modules.of_table: seen.is_table,
            self._modules.of_convolution: seen.is_of_convolution,
            self._modules.of_norm: seen.is_of_norm,
            self._of_linear: seen.linear_layout is not None,
            self._modules.of_bias: seen.is_of_linear and seen.local == "bias",
            self._experts.of_tensor: self._is_of_experts(seen),
            self._modules.of_plain_matrix: len(seen.shape) == 2,
            self._modules.of_vector: len(seen.shape) == 1,
        }
        make = next((make for make, applies in kinds.items() if applies), None)
        return unknown(f"a tensor with {len(seen.shape)} axes") if make is None else make(seen)

    def _of_linear(self, seen: Seen) -> Guess:
        assert seen.linear_layout is not None
        if seen.expert is not None:
            return self._experts.of_linear(seen, seen.linear_layout)
        if seen.in_experts:
            return unknown(f"{seen.title} of experts that are neither stacked nor in a list")
        return self._modules.of_linear(seen, seen.linear_layout)

    def _is_of_experts(self, seen: Seen) -> bool:
        stacked_bias = seen.is_bias and self._structure.outputs_of_router(seen.layer) == seen.shape[0]
        stacked = len(seen.shape) == 3 or (len(seen.shape) == 2 and (seen.in_experts or stacked_bias))
        return seen.expert is not None or stacked


def _of_transformers(model: nn.Module) -> Mapping[str, Guess]:
    """What is known of a model of ``transformers``, if all of it is."""
    if family_of(getattr(model, "config", None)) is None:
        return {}
    try:
        known = infos_of(model)
    except ValueError:
        return {}
    return {
        name: Guess(replace(info, tied_as="", place=""), "as mssp.hf.adapt describes it")
        for name, info in known.items()
    }


def _of_one_parameter(found: Mapping[str, Guess]) -> Mapping[str, Guess]:
    """The guesses for all names of one parameter. A shared matrix has consequences that a person should know."""
    first, *others = found
    roles = {None if guess.claim is None else guess.claim.role for guess in found.values()}
    if len(roles) == 1 or not others:
        return found
    tied = f"the matrix of {first}: the logits then need plan.multiplier('tied_readout')"
    reason = tied if roles == {"embedding", "readout"} else f"the parameter {first}, with another role"
    return {name: guess if name == first else guess.doubted(reason) for name, guess in found.items()}


def _with_experts(guesses: Mapping[str, Guess], structure: Structure) -> dict[str, Guess]:
    """By names in which ``{expert}`` stands for the number of an expert, where all experts have one guess."""
    together: dict[str, dict[str, Guess]] = {}
    for name, guess in guesses.items():
        place, parts = structure.parameters[name].expert, name.split(".")
        folds = place is not None and (guess.claim is None or guess.claim.expert_axis is None)
        shared = ".".join([*parts[:place], EXPERT, *parts[(place or 0) + 1 :]]) if folds else name
        together.setdefault(shared, {})[name] = guess
    return {
        shared if len(set(found.values())) == 1 else name: guess
        for shared, found in together.items()
        for name, guess in found.items()
    }


def _as_text(claim: ParamInfo | str | None) -> str:
    """A claim as Python text."""
    if claim is None:
        return "..."
    if isinstance(claim, str):
        return json.dumps(claim)
    words = [json.dumps(claim.role)]
    for each in sorted(fields(claim)[1:], key=lambda each: each.name != "layout"):
        value = getattr(claim, each.name)
        if value != each.default:
            words.append(f"{each.name}={json.dumps(value) if isinstance(value, str) else value}")
    return f"mssp.ParamInfo({', '.join(words)})"
