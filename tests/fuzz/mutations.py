"""Mutations of JSON documents and of bytes: pure functions from random numbers and a thing to a broken copy of it.

A broken thing is the sound one after a few steps. Each step has random numbers of its own, so that a failure stays one
when steps that have nothing to do with it are left out.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

Mutation = Callable[[Random, Any], Any]


class Step(NamedTuple):
    """A mutation by its name, with the seed of its random numbers."""

    name: str
    seed: int


def drawn(random: Random, names: Collection[str], counts: Sequence[int] = (1, 1, 2, 3)) -> list[Step]:
    """Steps with some of these names, as many as one of the counts."""
    return [Step(name, random.getrandbits(32)) for name in random.choices(sorted(names), k=random.choice(counts))]


def after(thing: Any, steps: Sequence[Step], mutations: Mapping[str, Mutation]) -> Any:
    """A thing after the steps that are among these mutations."""
    for name, seed in steps:
        if name in mutations:
            thing = mutations[name](Random(seed), thing)
    return thing


WORDS = (
    "pass", "fail", "ok", "off", "zero", "unpredicted", "yes", "no", "stalls", "unclear", "stays", "drifts up",
    "drifts down", "converges", "slow", "I", "II", "III", "mssp", "mup", "sp", "jiang", "sgd", "adam", "paper",
    "simulated", "width", "depth", "experts", "divergence", "", "a\nb", "\x00", "<b>", "é" * 20_000,
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 7, 0.5, -0.0, -3.75, 1e-320, 5e-324, 1e6, 2**31, 2**53, 2**63, 1e100, 1e249, 1e308, -1e308, 10**300,
    10**400, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
NODES: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], "text", 64.0, ["a", 1], {"value": 1})


def places(document: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every node but the root, as keys and indices."""
    entries = document.items() if isinstance(document, dict) else enumerate(document) if _is_list(document) else ()
    for key, value in entries:
        yield (*place, key)
        yield from places(value, (*place, key))


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _at(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        document = document[key]
    return document


def _chosen(random: Random, document: Any, fits: Callable[[Any], bool] = lambda value: True) -> tuple[Any, Any] | None:
    """The parent and the key of a node that fits. Every depth is as likely: most nodes are numbers, deep in lists."""
    by_depth: dict[int, list[tuple[Any, ...]]] = {}
    for place in places(document):
        if fits(_at(document, place)):
            by_depth.setdefault(len(place), []).append(place)
    if not by_depth:
        return None
    place = random.choice(by_depth[random.choice(sorted(by_depth))])
    return _at(document, place[:-1]), place[-1]


def _in_copy(change: Callable[[Random, Any, Any], None], fits: Callable[[Any], bool] = lambda value: True) -> Mutation:
    """A mutation that changes one node of a copy, by its parent and its key."""

    def mutate(random: Random, document: Any) -> Any:
        changed = copy.deepcopy(document)
        chosen = _chosen(random, changed, fits)
        if chosen is not None:
            change(random, *chosen)
        return changed

    return mutate


def _delete(_: Random, parent: Any, key: Any) -> None:
    del parent[key]


def _replace(random: Random, parent: Any, key: Any) -> None:
    parent[key] = copy.deepcopy(random.choice(NODES))


def _number(random: Random, parent: Any, key: Any) -> None:
    parent[key] = random.choice(NUMBERS)


def _nudge(random: Random, parent: Any, key: Any) -> None:
    value = parent[key] if abs(parent[key]) < 1e250 else 0
    parent[key] = random.choice((value + 1, -value, value * 2, value * 1.001, value * 1e12, str(value)))


def _word(random: Random, parent: Any, key: Any) -> None:
    parent[key] = random.choice(WORDS)


def _flip(_: Random, parent: Any, key: Any) -> None:
    parent[key] = not parent[key]


def _deepen(random: Random, parent: Any, key: Any) -> None:
    for _ in range(random.choice((1, 3, 30, 100))):
        parent[key] = [parent[key]]


def _duplicate(random: Random, parent: Any, key: Any) -> None:
    if isinstance(parent, list):
        parent.insert(random.randrange(len(parent) + 1), copy.deepcopy(parent[key]))
    else:
        parent[random.choice((f"{key}2", "more", "a\nb", random.choice(list(parent))))] = copy.deepcopy(parent[key])


def _swap(random: Random, parent: Any, key: Any) -> None:
    other = random.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    parent[key], parent[other] = parent[other], parent[key]


def _reverse(_: Random, parent: Any, key: Any) -> None:
    value = parent[key]
    parent[key] = value[::-1] if isinstance(value, list) else dict(reversed(value.items()))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


OF_DOCUMENTS: Mapping[str, Mutation] = {
    "delete": _in_copy(_delete),
    "replace": _in_copy(_replace),
    "number": _in_copy(_number, _is_number),
    "nudge": _in_copy(_nudge, _is_number),
    "word": _in_copy(_word, lambda value: isinstance(value, str)),
    "flip": _in_copy(_flip, lambda value: isinstance(value, bool)),
    "deepen": _in_copy(_deepen),
    "duplicate": _in_copy(_duplicate),
    "swap": _in_copy(_swap),
    "reverse": _in_copy(_reverse, lambda value: isinstance(value, dict | list)),
}


def _truncate(random: Random, content: bytes) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _flip_bytes(random: Random, content: bytes) -> bytes:
    flipped = bytearray(content)
    for _ in range(random.choice((1, 1, 3, 20)) if content else 0):
        flipped[random.randrange(len(flipped))] = random.randrange(256)
    return bytes(flipped)


def _digits(random: Random, content: bytes) -> bytes:
    """Some digit becomes another, or very many, or half of a character."""
    where = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
    if not where:
        return content
    place = random.choice(where)
    other = random.choice((b"9", b"0", b"1e999", b"9" * 5000, b"NaN", b'"\\ud800"', b"-", b"[" * 5000))
    return content[:place] + other + content[place + 1 :]


def _key_twice(_: Random, content: bytes) -> bytes:
    first, brace, rest = content.partition(b"{")
    key = rest.partition(b":")[0]
    return first + brace + key + b": null," + rest


def _insert(random: Random, content: bytes) -> bytes:
    place = random.randrange(len(content) + 1)
    return content[:place] + random.choice((b"[" * 100_000, b"\xff\xfe", b"\x00", b"}", b",", b'"')) + content[place:]


OF_BYTES: Mapping[str, Mutation] = {
    "truncate": _truncate,
    "flip bytes": _flip_bytes,
    "digits": _digits,
    "key twice": _key_twice,
    "insert": _insert,
}


def steps_of_document(random: Random) -> list[Step]:
    """One to three mutations of a document, at times with one of the bytes of its file."""
    return [*drawn(random, OF_DOCUMENTS), *(drawn(random, OF_BYTES, [1]) if random.random() < 0.2 else [])]


def file_after(document: Any, steps: Sequence[Step], mutations: Mapping[str, Mutation] = OF_DOCUMENTS) -> bytes:
    """A file of the document after these steps: first its own mutations, then those of the bytes."""
    content = json.dumps(after(document, steps, mutations)).encode()
    return bytes(after(content, steps, OF_BYTES))
