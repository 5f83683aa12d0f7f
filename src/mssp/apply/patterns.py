"""Name patterns: what claims are keyed by, how they match names, and how names are folded into them.

In a pattern ``*`` stands for anything, ``?`` for one character and ``{expert}`` for the number of an expert that is a
parameter of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

from mssp.planning.parameter import ParamInfo

EXPERT = "{expert}"
# All digits of the number: "*{expert}" must not split 12 into 1 and 2.
_NUMBER = r"(?P<expert>(?<!\d)\d+(?!\d))"
_WILDCARD = re.compile(r"\*|\?|\{expert\}")
_MOST_NUMBERS = 6  # of one name that are tried in all combinations
Entry = TypeVar("Entry", bound=Hashable)


class Pattern:
    """A name pattern and what it stands for. Its spellings are ``exact`` names, or have wildcards and are regexes.

    >>> Pattern(["blocks.*.experts.{expert}.w1"], "bias").tied_as("blocks.2.experts.7.w1")
    'blocks.2.experts.{expert}.w1'
    """

    def __init__(self, spellings: list[str], claim: ParamInfo | str) -> None:
        self.text = spellings[0]
        self.info = ParamInfo(claim) if isinstance(claim, str) else claim
        if self.text.count(EXPERT) > 1:
            raise ValueError(f"pattern {self.text!r} names {EXPERT} more than once")
        self.exact = {spelling for spelling in spellings if not _WILDCARD.search(spelling)}
        self.regexes = [_regex(spelling) for spelling in dict.fromkeys(spellings) if spelling not in self.exact]

    def match(self, name: str) -> re.Match[str] | None:
        """How a name matches a spelling with wildcards."""
        return next((match for regex in self.regexes if (match := regex.fullmatch(name))), None)

    def tied_as(self, name: str) -> str:
        """The name that the experts of a parameter share, or the one that the description gives."""
        match = self.match(name)
        if match is None or "expert" not in match.groupdict():
            return self.info.tied_as
        return name[: match.start("expert")] + EXPERT + name[match.end("expert") :]


def _regex(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", ".").replace(r"\{expert\}", _NUMBER))


def matcher(patterns: Sequence[Pattern]) -> Callable[[str], list[Pattern]]:
    """A function that lists the patterns that match a name, in their order."""
    exact: dict[str, list[int]] = {}  # looked up, since a model has thousands of names
    for index, pattern in enumerate(patterns):
        for spelling in pattern.exact:
            exact.setdefault(spelling, []).append(index)
    with_wildcards = [index for index, pattern in enumerate(patterns) if pattern.regexes]

    def matching(name: str) -> list[Pattern]:
        matches = {index for index in with_wildcards if patterns[index].match(name)}
        return [patterns[index] for index in sorted(matches.union(exact.get(name, ())))]

    return matching


def starred(name: str) -> str:
    """A name with every number that stands alone as ``*``, or as ``{expert}`` in a list that is called experts.

    >>> starred("layers.3.mlp.experts.7.w2.weight")
    'layers.*.mlp.experts.{expert}.w2.weight'
    """
    parts = name.split(".")
    for place in _numbers(parts):
        in_experts = place > 0 and "expert" in parts[place - 1] and "shared" not in parts[place - 1]
        parts[place] = EXPERT if in_experts and EXPERT not in parts else "*"
    return ".".join(parts)


def folded(entries: Mapping[str, Entry], others: Collection[str] = ()) -> dict[str, Entry]:
    """Patterns for names: each stands for names with one entry, and matches no other name.

    A name may have ``{expert}`` for the number of an expert already: it is kept, and stands for all numbers. No pattern
    matches one of ``others``.

    >>> folded({"blocks.0.w": "hidden", "blocks.1.w": "hidden", "blocks.0.b": "bias", "blocks.1.b": "bias"})
    {'blocks.*.w': 'hidden', 'blocks.*.b': 'bias'}
    """
    left, numbered = dict(entries), {name: _with_numbers(name) for name in entries}
    found: dict[str, Entry] = {}
    for name, entry in entries.items():
        if name not in left:
            continue
        for pattern in _candidates(name):
            matches = _regex(pattern).fullmatch
            covered = [other for other in entries if other == name or matches(numbered[other])]
            alike = all(other in left and left[other] == entry for other in covered)
            if alike and not any(map(matches, others)):
                break
        else:  # a name that is a pattern itself, and matches others
            pattern, covered = name, [name]
        found[pattern] = entry
        for other in covered:
            del left[other]
    return _merged(found, numbered.values(), others)


def _candidates(name: str) -> Iterator[str]:
    """The name with ``*`` for some of its numbers: first for all of them, last for none."""
    parts = name.split(".")
    numbers = _numbers(parts)[-_MOST_NUMBERS:]
    for count in range(len(numbers), -1, -1):
        for places in combinations(numbers, count):
            yield ".".join("*" if place in places else part for place, part in enumerate(parts))


def _numbers(parts: Sequence[str]) -> list[int]:
    return [place for place, part in enumerate(parts) if part.isdecimal()]


def _with_numbers(name: str) -> str:
    """A name that a regex can match: a number in place of ``{expert}``."""
    return name.replace(EXPERT, "0")


def _merged(patterns: Mapping[str, Entry], names: Collection[str], others: Collection[str]) -> dict[str, Entry]:
    """Patterns of one entry that differ in one part become one, if that matches no other name."""
    found = dict(patterns)
    by_pattern = {pattern: {name for name in names if _regex(pattern).fullmatch(name)} for pattern in found}
    while True:
        alike: dict[tuple[str, Entry], list[str]] = {}
        for pattern, entry in found.items():
            parts = pattern.split(".")
            for place, part in enumerate(parts[:-1]):
                if _WILDCARD.search(part) is None:
                    masked = ".".join([*parts[:place], "*", *parts[place + 1 :]])
                    alike.setdefault((masked, entry), []).append(pattern)
        for (masked, entry), together in alike.items():
            if len(together) == 1:
                continue
            matches = _regex(masked).fullmatch
            covered = {name for name in names if matches(name)}
            if covered == set().union(*(by_pattern[pattern] for pattern in together)) and not any(map(matches, others)):
                by_pattern[masked] = covered
                renamed = {masked if pattern == together[0] else pattern: found[pattern] for pattern in found}
                found = {pattern: entry for pattern, entry in renamed.items() if pattern not in together[1:]}
                break
        else:
            return found
