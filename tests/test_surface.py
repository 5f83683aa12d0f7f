"""What others build on, as literal lists: public names, flags, and the keys of every JSON document.

A line here changes only on purpose: somebody's code, script or file relies on it. The lists are held against the help
and the documents in ``tests/golden/observed``.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mssp
from mssp.cli.commands import COMMANDS
from tests.golden.cases import kept

PACKAGE = Path(mssp.__file__).parent
PUBLIC = {
    "mssp": "ParamInfo Plan PlanWarning Power Recipe Rule Shape check check_schedule describe hf initialize monitor "
    "param_groups plan rule same_step scale_gradients suggest_claims verify",
    "mssp.apply": "Claims check_schedule describe initialize optimizer_for param_groups scale_gradients verify",
    "mssp.cli": "main",
    "mssp.coordcheck": "Check check",
    "mssp.data": "Dataset NAMES Split TokenFile TokenOrder check_vocabulary from_folder from_npz load prepare "
    "python_tokens save_npz subset token_file tokenizer_of",
    "mssp.dmft": "Comparison Experiment Solution compare example solve",
    "mssp.hf": "PlanCallback Proxy Suggestions adapt by_name checkpoint_infos fold from_config optimizer_factory "
    "plan proxy push release save_pretrained suggest_claims",
    "mssp.hosts": "HOSTS SIDES Sizes export",
    "mssp.ladders": "Ladder Ladders MLPLadder Tuned family multipliers_for transformer_multipliers",
    "mssp.measure": "Alarm ModuleProbe Monitor RouterHealth monitor verify",
    "mssp.nn": "ExpertWeights Experts GPT GPTConfig GPTOutput MLPConfig MLPMoE MoE Router RouterStatistics Routing "
    "apply_experts route",
    "mssp.planning": "Optimizer ParamInfo Plan PlanWarning Power Recipe Regime Rule Scheme Setting Shape Values plan "
    "rule",
    "mssp.replicas": "Feed Lockstep MLPProgram ModuleProgram Replica Schedule Trained train",
    "mssp.report": "findings_of read report",
    "mssp.store": "Chunk NewRun Result Run Store Study export frame",
    "mssp.sweep": "Contender Found Job LearningRates Local METRICS Metric Procedure Score Transfer Trial WidthSummary "
    "carry_out transfers trials tune",
    "mssp.testing": "HostContract LadderContract OptimizerContract ProgramContract SchemeContract",
    "mssp.theory": "",
    "mssp.train": "DataSettings Ended RunSettings SameStep Step StepReport Training TrainingSettings WatchSettings "
    "accumulating clip_ listed_recipes load_model read_recipe same_step save_pretrained spread total_norm",
}

# Without --help; what follows them and what they mean is in the golden.
FLAGS = {
    "demo": "folder widths steps seeds",
    "plan": "lr scheme optimizer regime eps weight-decay init-std init-mult lr-mult aggregation-mult readout "
    "as-printed grad-scale decay-by-multiplier decay-gains eps-rule residual-rule gates-sum-to-one extend base-config "
    "target-config json by-name markdown target.width "
    "target.expert-width target.experts target.active target.depth target.inputs base.width "
    "base.expert-width base.experts base.active base.depth base.inputs recipe.betas recipe.batch "
    "recipe.steps recipe.warmup tuned-with.betas tuned-with.batch tuned-with.steps tuned-with.warmup",
    "proxy": "width regime depth experts rungs output",
    "explain": "regime scheme json markdown",
    "claims": "",
    "export": "plan output qk-norm target.attention-width target.ffn-width target.shared-width target.q-rank "
    "target.kv-rank base.attention-width base.ffn-width base.shared-width base.q-rank base.kv-rank",
    "check": "regime scheme optimizer widths depths steps seeds batch data data-gib active readout multipliers lr "
    "as-printed numerics require-stable all device json plot plot-sizes plot-evaluation layout processes",
    "tune": "data data-gib steps batch validation active readout store device precision backend json plot export "
    "regime scheme optimizer width lr multipliers metric lr-points lr-ratio aggregation-mult method points ratio "
    "broad-points broad-ratio rounds budget early-stop seeds confirm search-seed output",
    "sweep": "data data-gib steps batch validation active readout store device precision backend json plot export "
    "regime scheme optimizer widths largest seeds lr-points lr-ratio lrs multipliers metric plot-scaling "
    "markdown",
    "train": "recipe out resume model plan base-config lr scheme regime weight-decay lr-mult init-mult data sequence "
    "passes validation steps tokens-per-step micro-batch warmup schedule clip balance z-loss precision compile "
    "checkpointing layout seed validate-every save-every keep routers-every monitor-every track device gpt.width "
    "gpt.expert-width gpt.experts gpt.active gpt.depth gpt.moe-every gpt.head gpt.vocabulary base.width "
    "base.expert-width base.experts base.active base.depth base.inputs",
    "generate": "checkpoint prompt length temperature top-k seed data device",
    "dmft": "regime scheme plan inputs test-inputs steps lr rates stds readout width expert-width experts active "
    "activation gate compare seeds samples solves seed device json plot",
    "data": "output tokenizer vocabulary-files end-token dataset text-field split-on validation tokens",
    "report": "output title metric figures",
    "dispatch": "device",
}

SHAPE = "width expert_width experts active depth inputs"
RECIPE = "betas batch steps warmup"
INTERVAL = "value ci"
MADE_WITH = "python numpy torch mssp host device started"
OBSERVABLES = "f loss phi1 g1 phi3 g3 router_mean router_variance phi2 g2 router_gradient"
# Keys at every place of a document. Where keys are data (roles, widths, quantities), a * stands for each of them.
PLAN = {
    "": "scheme optimizer regime base target lr eps weight_decay aggregation residual readout as_printed grad_scale "
    "lr_mult init_mult init_std aggregation_mult recipe tuned_with roles warnings version hash",
    "base": SHAPE,
    "target": SHAPE,
    "recipe": RECIPE,
    "tuned_with": RECIPE,
    "roles/*": "init_std lr lr_scale eps grad_scale weight_decay tied zero source power",
    "roles/*/power": "init_std lr eps",
}
# A plan for a growth that is no regime's has κ, and a part of the start that experts share.
ANY = PLAN | {
    "": f"{PLAN['']} kappa",
    "roles/*": f"{PLAN['roles/*']} shared",
    "roles/*/power/init_std/*": "N N_e K",
}
BY_NAME = {
    "": "plan parameters factors",
    **{f"plan/{place}".rstrip("/"): words for place, words in ANY.items()},
    "plan": f"{ANY['']} sides load_balance",
    "plan/sides/*": "fan_in fan_out base_fan_in base_fan_out",
    "parameters": "header rows",
}
CHECK = {
    "": "scheme optimizer regime readout axis widths steps seeds quantities causes loss verdict stable data active "
    "base_width made_with",
    "quantities/*": "exponents ci values predicted slack source judged stable verdict reason",
    "quantities/*/judged": "exponent ci expected slack",
    "made_with": MADE_WITH,
}
SWEEP = {
    "": "experiment settings",
    "settings": "optimizer regime scheme active readout metric seeds widths drift drift_verdict why_unclear "
    "wider_is_better wider_is_better_transferred",
    "settings/widths/*": "log2_best_lr best_grid_lr at_edge best transferred regret largest_stable_lr diverged",
    "settings/widths/*/log2_best_lr": INTERVAL,
    "settings/widths/*/best": INTERVAL,
    "settings/widths/*/transferred": INTERVAL,
    "settings/widths/*/regret": INTERVAL,
    "settings/drift": INTERVAL,
}
TUNE = {
    "": "lr multipliers aggregation_mult metric best new_seeds runs at_edge",
    "multipliers": "init embedding router expert_in expert_out readout",
    "new_seeds": "mean ci seeds diverged",
}
LIMIT = {
    "": "regime scheme inputs test_inputs steps solves loss loss_error f f_error kernels relative_error contradiction "
    "warnings plan finite exponent exponent_ci verdict overlay made_with",
    "kernels": "phi1 phi3 g1 phi2 g2 router_gradient g3 router",
    "kernels/router": "mean variance",
    "relative_error": OBSERVABLES,
    "contradiction": "outputs features",
    "finite/*": "seeds loss f deviation error",
    "finite/*/deviation": OBSERVABLES,
    "finite/*/error": OBSERVABLES,
    "exponent": OBSERVABLES,
    "exponent_ci": OBSERVABLES,
    "overlay": "heading regime scheme steps inputs targets solutions mean error warnings beside exponents verdict",
    "overlay/mean": OBSERVABLES,
    "overlay/error": OBSERVABLES,
    "overlay/beside": "width seeds curves deviation error",
    "overlay/beside/curves": OBSERVABLES,
    "overlay/beside/deviation": "f phi1 phi3 g1",
    "overlay/beside/error": "f phi1 phi3 g1",
    "overlay/exponents": "f phi1 phi3 g1",
    "made_with": MADE_WITH,
}
DOCUMENTS = {
    "documents/plan: every flag": PLAN,
    "documents/plan --by-name: configs": BY_NAME,
    "check/II, mssp, sgd": CHECK,
    "sweep/two schemes": SWEEP,
    "tune/grid": TUNE,
    "dmft/compared": LIMIT,
}
KEYED_BY_DATA = {
    "roles", "quantities", "widths", "finite", "values", "lr_mult", "init_mult", "init_std", "loss", "lr", "eps",
    "sides",
}  # fmt: skip


def test_commands_have_these_flags() -> None:
    assert {name: flags_of(kept(f"help/{name}")["out"]) for name in COMMANDS} == {
        name: flags.split() for name, flags in FLAGS.items()
    }


def flags_of(lines: list[str]) -> list[str]:
    """Those at the start of a line; help is in columns, with two spaces between them."""
    heads = [line.strip().partition("  ")[0] for line in lines if re.match(" +-", line)]
    return [flag for head in heads for flag in re.findall(r"--([a-z][\w.-]+)", head) if flag != "help"]


def test_packages_export_these_names() -> None:
    packages = ["mssp", *sorted(f"mssp.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py"))]
    names = {package: getattr(importlib.import_module(package), "__all__", []) for package in packages}
    assert {package: sorted(public) for package, public in names.items()} == {
        package: public.split() for package, public in PUBLIC.items()
    }


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_has_these_keys(name: str) -> None:
    assert keys_of(kept(name)["json"]) == {place: set(words.split()) for place, words in DOCUMENTS[name].items()}


def test_schemas_list_the_same_keys() -> None:
    # A plan for a growth that is none of the paper's has κ, one says if gates sum to one, one over configs has sides
    # and says, where K grows, what becomes of a load-balancing loss. Options and parts are there where they are used.
    assert schema_keys("planning/plan.schema.json") == {
        *PLAN[""].split(), "kappa", "gates_sum_to_one", "sides", "load_balance", "parts",
        "decay_by_multiplier", "decay_gains", "eps_rule", "residual_rule",
    }  # fmt: skip
    # A check over depths has these instead of widths, and one with --numerics says more.
    assert schema_keys("coordcheck/check.schema.json") == {*CHECK[""].split(), "depths", "numerics"}


def schema_keys(file: str) -> set[str]:
    return set(json.loads((PACKAGE / file).read_text(encoding="utf-8"))["properties"])


def keys_of(document: Any) -> dict[str, set[str]]:
    """The keys at every place, together where several share a place."""
    keys: dict[str, set[str]] = {}
    for place, names in _places(document, ""):
        keys[place] = keys.get(place, set()) | names
    return keys


def _places(value: Any, place: str) -> Iterator[tuple[str, set[str]]]:
    if isinstance(value, list):
        for entry in value:
            yield from _places(entry, place)
    elif isinstance(value, dict):
        if place.rpartition("/")[2] in KEYED_BY_DATA:
            for entry in value.values():
                yield from _places(entry, f"{place}/*")
        else:
            yield place, set(value)
            for key, entry in value.items():
                yield from _places(entry, f"{place}/{key}".lstrip("/"))
