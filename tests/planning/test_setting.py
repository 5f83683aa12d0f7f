"""Optimizers, regimes, schemes and settings: objects inside, words in flags and files alone."""

from __future__ import annotations

import ast
import copy
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import mssp
from mssp.planning import setting as setting_module
from mssp.planning.power import Least, Power
from mssp.planning.rules import Init, Rows, for_all, regime_free, std
from mssp.planning.setting import (
    ADAM,
    ADAMW,
    II,
    III,
    JIANG,
    MSSP,
    MUP,
    NTP,
    OPTIMIZERS,
    REGIMES,
    SCHEMES,
    SGD,
    SP,
    I,
    Optimizer,
    Scheme,
    Setting,
)  # fmt: skip

PACKAGE = Path(mssp.__file__).parent
WORDS = {each.name for each in (*SCHEMES, *REGIMES, *OPTIMIZERS)}
# "mssp" is the package's own name too: in its version, on the command line, in names of folders and of entries.
OWN_NAME = {
    "_environment.py",
    "cli/commands.py",
    "cli/demo.py",
    "data/downloads.py",
    "hf/model_card.py",
    "planning/configs.py",
    "train/trackers.py",
    "report/sections.py",
    "testing/hosts.py",
}


def strings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Every string but docstrings and the help texts below a flag."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node


def flag_defaults(tree: ast.Module) -> set[int]:
    """Strings that are defaults of a command's flags."""
    found = set()
    for node in tree.body:
        for field in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(field, ast.AnnAssign) and field.value is not None:
                found |= {id(each) for each in ast.walk(field.value)}
    return found


def words_in(path: Path) -> list[str]:
    """Words of schemes, regimes and optimizers that a file writes down, membership tests and keys included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = path.relative_to(PACKAGE).as_posix()
    allowed = flag_defaults(tree) if name.startswith("cli/") else set()
    found = []
    for node in strings(tree):
        said = set(str(node.value).split())
        words = said if said <= WORDS else set()
        if name in OWN_NAME:
            words -= {"mssp"}
        found += [f"{name}:{node.lineno} {word}" for word in words if id(node) not in allowed]
    return found


def test_words_exist_in_flags_and_files_alone() -> None:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "planning" / "setting.py"]
    assert [word for path in paths for word in words_in(path)] == []


@pytest.mark.parametrize(
    "line",
    [
        'if plan.optimizer == "sgd":\n    pass',
        'x = {"II": 1}',
        'x = scheme in ("mup", "mssp")',
        'x = "I II III".split()',
    ],
)
def test_a_word_elsewhere_would_be_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    file = tmp_path / "planning.py"
    file.write_text(line, encoding="utf-8")
    assert words_in(file)


@pytest.mark.parametrize("one", [*SCHEMES, *REGIMES, *OPTIMIZERS], ids=str)
def test_there_is_one_object_per_word(one: object) -> None:
    assert pickle.loads(pickle.dumps(one)) is one
    assert copy.deepcopy(one) is one


def test_a_setting_and_its_words() -> None:
    setting = Setting.of("mup", "II", "sgd", "mup")
    assert setting == Setting(scheme=MUP, regime=II, optimizer=SGD, readout="mup")
    assert setting.words() == {
        "scheme": "mup", "regime": "II", "optimizer": "sgd", "readout": "mup", "as_printed": False
    }  # fmt: skip
    assert Setting.of(**setting.words()) == setting
    assert Setting.of(MUP, II, SGD, "mup") == setting
    assert str(setting) == "Regime II · mup · sgd · readout mup"
    assert str(Setting(scheme=SP, optimizer=ADAM)) == "sp · adam"
    assert str(Setting(scheme=MSSP, regime=I, as_printed=True)) == "Regime I · mssp · adamw · as printed"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (Setting(), "scheme 'mssp' needs a regime: use one of I, II, III"),
        (Setting(scheme=NTP), "scheme 'ntp' is defined for sgd only, not adamw"),
        (Setting(scheme=JIANG, regime=I), "scheme 'jiang' is defined for adam and adamw in regime III, not adamw in I"),
        (
            Setting(scheme=JIANG, regime=III, optimizer=SGD),
            "scheme 'jiang' is defined for adam and adamw in regime III, not sgd in III",
        ),
    ],
)
def test_cells_without_a_rule_are_refused(setting: Setting, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        setting.checked()


def test_roles_without_a_row_go_to_the_optimizer_that_takes_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer that moves hidden matrices alone, at a learning rate of its own."""
    toy = Optimizer(name="toy", title="Toy", row="sgd", moments=1, rest=ADAMW)

    def rows(role: str) -> Rows:
        found = MSSP.rows(role)
        return replace(found, sgd=for_all(Power(fan_out="1/2", fan_in="-1/2")) if role == "hidden" else None)

    scheme = Scheme(name="toys", title="Toys", rows=rows, optimizers=(toy,))
    monkeypatch.setattr(setting_module, "OPTIMIZERS", (*OPTIMIZERS, toy))
    monkeypatch.setattr(setting_module, "SCHEMES", (*SCHEMES, scheme))
    base, target = mssp.Shape(64, 32, 8, 8, 2), mssp.Shape(256, 128, 8, 8, 2)
    plan = mssp.plan(target, base, scheme="toys", optimizer="toy", lr=0.02, rest_lr=0.004)
    assert plan.setting.optimizer_of("hidden") is toy
    assert plan.setting.optimizer_of("router") is ADAMW
    assert plan.roles["hidden"].lr == 0.02  # square: the power of its sides is 1
    assert plan.roles["router"].lr == 0.001
    assert plan.roles["hidden"].eps is None
    assert plan.roles["router"].eps == 1e-8
    assert mssp.Plan.from_json(plan.json()) == plan
    assert '"rest_lr": 0.004' in plan.json()
    assert "lr of the rest 0.004" in str(plan)
    model = nn.Linear(256, 256, bias=False)
    claims = {"weight": mssp.ParamInfo("hidden", layout="out in")}
    groups = mssp.param_groups(model, plan, claims)
    other = mssp.param_groups(
        nn.Linear(256, 8, bias=False), plan, {"weight": mssp.ParamInfo("router", layout="out in")}
    )
    assert [group["lr"] for group in groups + other] == [0.02, 0.001]
    assert mssp.check_schedule(torch.optim.AdamW(groups + other, eps=1e-8), plan) == 1.0
    with pytest.raises(
        ValueError, match="rest_lr is for optimizers that leave roles to another one: leave it out with"
    ):
        mssp.plan(target, base, lr=0.02, rest_lr=0.004)
    with pytest.raises(ValueError, match="SP has no learning rate of hidden for Lonely"):
        Setting(scheme=Scheme(name="s", title="SP", rows=_without_rates), optimizer=_LONELY).rule("hidden")


_LONELY = Optimizer(name="lonely", title="Lonely", row="adam")


def _without_rates(role: str) -> Rows:
    return replace(regime_free(Power())(role), adam=None)


def test_a_cell_may_hold_the_smallest_of_growths() -> None:
    boost = Least(Power(K="1/2"), Power(N="1/2", N_e="-1/2"))
    scheme = replace(MSSP, rows=lambda role: replace(MSSP.rows(role), init=for_all(std(boost * Power(N="-1/2")))))
    start = Setting(scheme=scheme, regime=II, optimizer=SGD).rule("expert_out").init_std
    assert start is not None
    assert start.symbols == {"K", "N", "N_e"}
    base, target = {"K": 2, "N": 64, "N_e": 16}, {"K": 18, "N": 256, "N_e": 16}
    assert start.value(target, base) == pytest.approx(2 / 16)  # n/n_e, 4, stops k, 9
    assert start.value({**target, "K": 4}, base) == pytest.approx(2**0.5 / 16)
    assert start.value(target) == pytest.approx(4 / 16)  # from a base of ones
    assert start.ratio(target, base) == pytest.approx(2 / 2)
    assert start.ratio(base, base) == 1.0
    assert start.json() == {"times": {"N": "-1/2"}, "min": [{"K": "1/2"}, {"N": "1/2", "N_e": "-1/2"}]}
    assert start.plain() == "N^-1/2 min(k^1/2, n^1/2 n_e^-1/2)"


def test_a_share_between_none_and_all_is_written_where_it_is() -> None:
    scheme = replace(MSSP, rows=lambda role: replace(MSSP.rows(role), init=for_all(Init(Power(N="-1/2"), shared=0.5))))
    shape = mssp.Shape(64, 32, 8, 8, 2)
    half = replace(mssp.plan(shape, regime="III", lr=1.0), setting=Setting(scheme=scheme, regime=III))
    entries = half.roles["expert_in"].json()
    assert (entries["tied"], entries["shared"]) == (False, 0.5)
    whole = mssp.plan(shape, regime="III", lr=1.0).roles["expert_in"].json()
    assert whole["tied"] is True
    assert "shared" not in whole
    assert "shared 0.5" in str(half)
    assert half.roles["expert_in"].shared_weights == pytest.approx(0.5**0.5)


def test_objects_print_in_a_word() -> None:
    assert repr(MSSP) == "Scheme('mssp')"
    assert repr(Setting(regime=II)) == (
        "Setting(scheme=Scheme('mssp'), regime=Regime('II'), optimizer=Optimizer('adamw'), readout='zero', "
        "as_printed=False)"
    )


def test_an_unknown_readout_is_refused_where_it_counts() -> None:
    with pytest.raises(ValueError, match="readout must be one of zero, mup, scheme, got 'typo'"):
        Setting.of("mssp", "II", "sgd", "typo").rule("readout")
