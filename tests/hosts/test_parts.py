"""Exports of plans that name parts of hidden, and of plans with other options than the defaults."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import mssp
from mssp.hosts import HOSTS, export
from tests.hosts.real_hosts import BASE, TARGET

PLAN = mssp.plan(
    TARGET,
    replace(BASE, depth=TARGET.depth),
    lr=4e-3,
    weight_decay=0.1,
    lr_mult={"attention_in": 4.0, "ffn_out": 0.5},
    decay_by_multiplier=True,
    decay_gains=True,
    eps_rule="global",
    residual_rule="one",
)
# The learning rate and the decay: 4e-3 / 8 times the multiplier, 0.1 x 8 over it.
WANTED = {
    "hidden": (5e-4, 0.8),
    "hidden attention_in": (2e-3, 0.2),
    "hidden ffn_out": (2.5e-4, 1.6),
    "norm": (4e-3, 0.1),
}


@pytest.mark.parametrize("host", HOSTS)
def test_a_file_has_a_group_for_each_part(host: str) -> None:
    text = export(PLAN, host)
    found = {}
    for label, body in re.findall(r"# ((?:hidden|norm)[^\n]*)\n(.*?)\n    [),]", text, re.DOTALL):
        if "rank" in label:  # matrices behind a low rank, which does not grow
            continue
        entries = dict(re.findall(r'(lr|max_lr|lr_scale|eps|weight_decay)"?[=:] ?([\d.e-]+)', body))
        lr = 4e-3 * float(entries["lr_scale"]) if host == "nanogpt" else float(entries.get("lr") or entries["max_lr"])
        found[label.partition(",")[0]] = round(lr, 9), float(entries["weight_decay"])
        assert float(entries["eps"]) == 1e-8
        if label.startswith("hidden attention_in"):
            assert re.search("attn|attention", body)
    assert found == WANTED
    assert re.search(r"\nRESIDUAL = 1\.0 ", text)
