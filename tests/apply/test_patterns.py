"""Names folded into patterns: each pattern stands for names with one entry, and for no other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mssp.apply.patterns import Pattern, folded, matcher, starred


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"a.0.w": 1, "a.1.w": 1, "a.10.w": 1}, {"a.*.w": 1}),
        ({"a.0.w": 1, "a.1.w": 2}, {"a.0.w": 1, "a.1.w": 2}),
        # Only the number that may differ is folded.
        (
            {"a.0.net.0.w": 1, "a.0.net.2.w": 2, "a.1.net.0.w": 1, "a.1.net.2.w": 2},
            {"a.*.net.0.w": 1, "a.*.net.2.w": 2},
        ),
        # A star matches dots, so that "a.*.w" would stand for the third name too.
        ({"a.0.w": 1, "a.1.w": 1, "a.0.b.w": 2}, {"a.0.w": 1, "a.1.w": 1, "a.*.b.w": 2}),
        ({"a.0.q.w": 1, "a.0.k.w": 1, "a.1.q.w": 1, "a.1.k.w": 1, "a.0.n.b": 2}, {"a.*.*.w": 1, "a.*.n.b": 2}),
        ({"a.0.q.w": 1, "a.0.k.w": 1, "a.0.n.w": 2}, {"a.*.q.w": 1, "a.*.k.w": 1, "a.*.n.w": 2}),
        ({"a.0.e.{expert}.w": 1, "a.1.e.{expert}.w": 1}, {"a.*.e.{expert}.w": 1}),
        ({}, {}),
    ],
)
def test_folding(names: Mapping[str, int], expected: Mapping[str, int]) -> None:
    assert folded(names) == expected


def test_no_pattern_matches_what_is_not_asked_for() -> None:
    assert folded({"a.0.w": 1, "a.1.w": 1}, others=["a.2.w"]) == {"a.0.w": 1, "a.1.w": 1}
    assert folded({"a.q.w": 1, "a.k.w": 1}, others=["a.n.w"]) == {"a.q.w": 1, "a.k.w": 1}


def test_every_name_is_matched_once() -> None:
    names = {
        f"a.{block}.{part}.{place}.w": (part, place % 2) for block in range(3) for part in "kq" for place in range(3)
    }
    patterns = folded(names)
    matching = matcher([Pattern([pattern], "bias") for pattern in patterns])
    for name, entry in names.items():
        [pattern] = matching(name)
        assert patterns[pattern.text] == entry
    assert len(patterns) == 6


def test_numbers_of_experts_are_told_from_others() -> None:
    assert starred("h.3.shared_experts.0.w") == "h.*.shared_experts.*.w"
    assert starred("h.3.experts.1.net.2.w") == "h.*.experts.{expert}.net.*.w"
    assert starred("experts.1.experts.2.w") == "experts.{expert}.experts.*.w"
    assert starred("0.w1") == "*.w1"
