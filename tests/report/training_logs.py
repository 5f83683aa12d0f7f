"""Small logs of training runs, as mssp train writes them, for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]

START: Line = {
    "kind": "start",
    "plan": "c01bfda47bfc3634",
    "shape": {"width": 128, "expert_width": 64, "experts": 16, "active": 2, "depth": 2, "inputs": 1},
    "parameters": 725760,
    "data": {"path": "/somewhere/python.bin", "checksum": "799d64491f11d77f", "tokenizer": "bytes"},
    "settings": {"about": "small", "plan": {"lr": 0.016}, "training": {"steps": 4, "clip": 1.0}},
}
LOGITS: Line = {
    "kind": "alarm", "step": 3, "alarm": "logits", "layer": "blocks.1.ffn", "value": 12.31, "limit": 8.0, "layers": 2,
    "cause": "nothing holds the logits", "remedy": "add a z-loss of 1e-3", "text": "step 3: logits 12.3",
}  # fmt: skip
_WATCHED = {"routers/load": 3.0, "routers/load/worst": 4.0, "routers/starved": 0.0, "routers/starved/worst": 0.0}


def step(number: int, loss: float | None, **more: Any) -> Line:
    rates = {"norm": 0.008, "router": 0.0005 * number, "expert_in": 0.004, "expert_out": 0.004}
    return {"kind": "step", "step": number, "loss": loss, "norm": 2.0 / number, "clipped": 0.5, "lr": rates} | more


def sizes(number: int, **values: float | None) -> Line:
    named = {"effective/router": 0.1 * number, "effective/norm": 0.2 * number, "features/delta": 0.5 * number}
    return {"kind": "monitor", "step": number, "sizes": {"probe/loss": 5.0, **named, **values}}


LINES: tuple[Line, ...] = (
    START,
    step(1, 5.5, routers={**_WATCHED, "step/router": 1.0}, loads={"blocks.0": [0.5, 0.25, 0.125, 0.125, 0.0]}),
    sizes(0),
    step(2, None),
    sizes(2, **{"backward/A4": 0.25, "backward/A4.2": 0.125, "router/load": 2.5}),
    {"kind": "validation", "step": 2, "loss": 4.5, "sequences": 8},
    step(3, 4.0, routers={**_WATCHED, "routers/load": 2.0, "step/router": 0.25}),
    LOGITS,
    step(4, 3.5),
    {"kind": "validation", "step": 4, "loss": 3.25, "sequences": 8},
)
MACHINE: tuple[Line, ...] = (
    {"kind": "start", "step": 0, "device": "cpu", "mssp": "0.1.0", "torch": "2.13.0", "started": "2026-01-01"},
    *({"kind": "speed", "step": n, "seconds": 0.1, "tokens_per_second": 100.0 * n, "mfu": None, "memory": None}
      for n in (1, 2, 3)),
    {"kind": "checkpoint", "step": 2, "path": "somewhere", "seconds": 0.1},
    {"kind": "start", "step": 2, "device": "cuda", "mssp": "0.1.0", "torch": "2.13.0", "started": "2026-01-02"},
    {"kind": "speed", "step": 3, "seconds": 0.1, "tokens_per_second": 900.0, "mfu": 0.5, "memory": 2**31},
)  # fmt: skip


def text(lines: Iterable[Line]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def kept(folder: Path, lines: Iterable[Line] = LINES, machine: Iterable[Line] = MACHINE) -> Path:
    """The folder of a run with these logs."""
    folder.mkdir()
    (folder / "run.jsonl").write_text(text(lines))
    (folder / "machine.jsonl").write_text(text(machine))
    return folder
