"""Solutions against finite networks of the same plan, and mistakes that this must find."""

from __future__ import annotations

import functools

import pytest
import torch

from bench_planted import FILES, NOTICED, Mistake, Reference, contradicted, experiments, mistakes, planted

CPU = torch.device("cpu")
SAMPLES, NETWORKS = 12_000, 240
REGIMES = ("I", "II", "III")
# Terms of the router are small beside those of the experts: it takes a million samples to notice some of them doubled
# (./dev bench planted), and these are the others.
SEEN_WITH_FEW_SAMPLES = [
    ("regime_one", "iota"),
    ("regime_one", "run.learned('router', phi1.past)"),
    ("regime_one", "var['expert_in'] / M * a1.past"),
    ("regime_one", "run.learned('expert_in', phi1.past)"),
    ("regime_one", "var['expert_out'] / M * self.output_kernel.matrix"),
    ("regime_one", "var['expert_out'] * a3"),
    ("regime_one", "var['expert_out'] / (iota * M) * readout.response_past"),
    ("regime_one", "run.learned('expert_out', readout.gradient_past)"),
    ("regime_one", "var['expert_in'] * iota / M * self.gradient_kernel.so_far"),
    ("regime_one", "var['expert_in'] * iota * b2"),
    ("regime_one", "run.learned('router', self.router_kernel.so_far)"),
    ("regime_two", "units"),
    ("regime_two", "run.learned('router', phi1.past)"),
    ("regime_two", "var['expert_in'] / kappa * a1.past"),
    ("regime_two", "var['expert_out'] * self.output_kernel.matrix"),
    ("regime_two", "kappa * var['expert_out'] * a3"),
    ("regime_two", "kappa * var['expert_out'] / units * readout.gradient_so_far"),
    ("regime_two", "var['expert_out'] / units * readout.response_past"),
    ("regime_two", "run.learned('expert_out', readout.gradient_past)"),
    ("regime_two", "var['expert_in'] * g2_kernel"),
    ("regime_two", "var['expert_in'] * units * b2"),
    ("regime_three", "iota"),
    ("regime_three", "var['router'] * phi1.so_far"),
    ("regime_three", "tied * var['expert_in'] * a1.past"),
    ("regime_three", "run.learned('expert_in', phi1.past)"),
    ("regime_three", "tied * var['expert_out'] * self._shared_outputs.matrix"),
    ("regime_three", "var['expert_out'] * a3"),
    ("regime_three", "tied * var['expert_out'] / iota * readout.response_past"),
    ("regime_three", "run.learned('expert_out', readout.gradient_past)"),
    ("regime_three", "iota * run.learned('expert_in', self.gradient_kernel.so_far)"),
    ("features", "memory"),
    ("features", "noise"),
    ("readout", "self._run.constants.rate['readout'] * self._run.errors_now"),
]


@functools.cache
def references(regime: str) -> list[Reference]:
    # The first two settings, mssp and mup, in which all layers count.
    return [Reference.of(each, NETWORKS, CPU) for each in experiments(regime)[:2]]


def scores(regime: str) -> list[float]:
    tests = zip(experiments(regime), references(regime), strict=False)
    return [contradicted(experiment, reference, SAMPLES, CPU)[0] for experiment, reference in tests]


@pytest.mark.parametrize("regime", REGIMES)
def test_mssp_and_mup_agree_with_networks_and_with_themselves(regime: str) -> None:
    assert max(scores(regime)) < 2.5


@pytest.mark.parametrize(("file", "term"), SEEN_WITH_FEW_SAMPLES, ids=lambda value: value.replace(" ", ""))
def test_twice_a_term_is_noticed(file: str, term: str) -> None:
    (mistake,) = [each for each in mistakes(file) if each.text == term]
    with planted(mistake):
        assert max(scores(mistake.regimes[-1])) > NOTICED


def test_planted_mistakes_are_in_every_file_of_equations_and_are_taken_out_again() -> None:
    found = {file: mistakes(file) for file in FILES}
    assert {file: len(each) for file, each in found.items()} == {
        "regime_one": 17, "regime_two": 19, "regime_three": 19, "features": 4, "readout": 1,
    }  # fmt: skip
    before = scores("I")
    with planted(Mistake("readout", 0, "")):
        assert scores("I") != before
    assert scores("I") == before
