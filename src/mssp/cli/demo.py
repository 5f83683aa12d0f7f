"""``mssp demo``: a plan, checks, a sweep, a limit, a Hugging Face model and a report, in minutes on a laptop."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mssp._documents import parsed
from mssp._environment import __version__, device_text, pick_device
from mssp._files import write_whole
from mssp.cli import flags, progress
from mssp.cli.progress import Progress
from mssp.ladders.mlp import MLPLadder, family
from mssp.ladders.tuned import Tuned, multipliers_for
from mssp.planning import printing
from mssp.planning.plans import plan
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.setting import II, MSSP, MUP, SGD, Scheme, Setting
from mssp.planning.shape import Shape

if TYPE_CHECKING:
    from mssp.report.contents import Contents, Sweep
    from mssp.report.findings import Finding
    from mssp.sweep.execution import Job
    from mssp.sweep.transfer import LearningRates

_LEAST_WIDTHS = 2  # a model grows from one width to another
_DATA, _REGIME, _OPTIMIZER, _SCHEMES = "spectra", II, SGD, (MUP, MSSP)
_CHECK_STEPS, _CHECK_SEEDS, _CHECK_BATCH = 20, 6, 100
_RATES, _BATCH, _VALIDATION = (6, 2**0.5), 50, 1000  # rates: how many, and the factor between them
_SAMPLES, _SOLVES, _NETWORKS, _SEEDS = 10_000, 4, (16, 32, 64, 128), 60  # of the limit; networks by their width
_FAMILY, _VOCABULARY, _TOKENS, _UPDATES = "olmoe", 64, 32, 20
_SMALL = {"hidden_size": 64, "intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 4}
_LARGE = {"hidden_size": 128, "intermediate_size": 16, "num_experts": 16, "num_experts_per_tok": 8}
_SAME: dict[str, int | None] = {
    "vocab_size": _VOCABULARY, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


@dataclass
class DemoCommand:
    """See the point in two minutes on two CPU cores: one small model, grown by muP and by MSSP.

    Plans a model, checks both schemes against the theory, sweeps the learning rate over widths, solves the limit of
    infinite size, applies a plan to a Hugging Face model, and writes a report to open in a browser. Interrupt it and
    run it again: it goes on from where it was.
    """

    folder: flags.Folder = Path("mssp-demo")
    """where everything goes (default mssp-demo)"""
    widths: flags.SomeSizes = (64, 128, 256, 512)
    """widths N to sweep and to check (default 64 128 256 512)"""
    steps: flags.Size = 300
    """training steps of a run (default 300)"""
    seeds: flags.Size = 4
    """runs of each kind (default 4)"""

    def run(self) -> int:
        from mssp.report.saving import check_target

        for width in self.widths:
            family(_REGIME, width)  # refuses a width that no member has
        if len(set(self.widths)) < _LEAST_WIDTHS:
            raise ValueError(f"--widths must be {_LEAST_WIDTHS} or more different ones, got {len(set(self.widths))}")
        self._refuse_what_does_not_fit()
        self.folder.mkdir(exist_ok=True)
        check_target(self.folder / "report.html")  # refuses before minutes of work what cannot be written after them
        try:
            return self._run(self.folder)
        except KeyboardInterrupt as stop:
            stop.add_note(f"what is finished is in {self.folder}, the same command goes on")
            raise

    def _run(self, folder: Path) -> int:
        from mssp.report.contents import read
        from mssp.report.findings import findings_of
        from mssp.report.sections import report
        from mssp.sweep.transfer_text import tinyimagenet

        _plan(folder / "plan.json")
        with_model = find_spec("transformers") is not None
        if not with_model:
            print("without a Hugging Face model: pip install 'mssp[hf]' for that", file=sys.stderr)
        stages = Stages(5 + with_model)
        for scheme in _SCHEMES:
            self._check(folder / f"check-{scheme}.json", scheme, stages)
        sweep = self._sweep(folder / "runs.sqlite", stages)
        _limit(folder / "limit.json", stages)
        if with_model:
            _hugging_face(folder / "hugging-face.json", stages)
        with stages.stage("report", 1):
            files = ["check-mup.json", "check-mssp.json", "limit.json", "plan.json"]
            contents = read([folder / name for name in (*files, *(["hugging-face.json"] if with_model else []))])
            contents.sweeps.append(sweep)  # of these flags alone: the store may hold runs of other flags
            recorded = tinyimagenet()
            outcomes = {key: outcome for key, outcome in recorded.outcomes.items() if key.setting.regime is _REGIME}
            contents.recorded.append(replace(recorded, outcomes=outcomes))
            title = "mssp demo: one small MoE, grown by μP and by MSSP"
            write_whole(folder / "report.html", report(contents, title))
        findings = [finding for finding in findings_of(contents) if finding.check is not None]
        lines = list(_closing(folder, contents, findings))
        print()
        progress.show_lines(lines, emphasised=[lines[0]])
        return 0

    def _refuse_what_does_not_fit(self) -> None:
        """Refuse more runs, examples or memory than there are, before the folder is made."""
        from mssp.coordcheck.ladder_runs import LadderSizes, check_memory_of

        _rates().check_runs(len(_SCHEMES) * len(self.widths), self.seeds)
        job = self._job()
        job.check()
        runs = LadderSizes(self.widths).programs(_setting(MSSP), _tuned(MSSP), MLPLadder, job.data)
        check_memory_of(runs, _CHECK_SEEDS, _CHECK_BATCH, pick_device("cpu"))

    # -- stages --------------------------------------------------------------------------------------------------------

    def _check(self, path: Path, scheme: Scheme, stages: Stages) -> None:
        settings = {"scheme": scheme.name, "widths": list(self.widths), "steps": _CHECK_STEPS, "seeds": _CHECK_SEEDS}

        def make(display: Progress) -> dict[str, Any]:
            from mssp.coordcheck.ladder_runs import LadderSizes, check_runs, with_safe_lr
            from mssp.data import load

            setting, tuned = _setting(scheme), _tuned(scheme)
            data = load(_DATA)
            runs = LadderSizes(self.widths).programs(setting, with_safe_lr(tuned, _OPTIMIZER), MLPLadder, data)
            check = check_runs(
                runs,
                MLPLadder(_REGIME, data).feed(pick_device("cpu")),
                steps=_CHECK_STEPS,
                batch=_CHECK_BATCH,
                seeds=range(_CHECK_SEEDS),
                on_step=display.advance,
            )
            return check.json() | {"data": _DATA, "active": None, "base_width": tuned.base_width}

        title = f"check of {scheme.title}: does every term scale as the theory says?"
        _make_unless_kept(path, settings, stages, title, len(self.widths) * _CHECK_STEPS, make)

    def _sweep(self, path: Path, stages: Stages) -> Sweep:
        from mssp.report.contents import sweep_of
        from mssp.store.runs import Store
        from mssp.sweep.execution import Local, carry_out
        from mssp.sweep.transfer import Contender, trials

        job = self._job()
        contenders = {Contender(_setting(scheme)): _tuned(scheme) for scheme in _SCHEMES}
        planned = trials(contenders, {_REGIME: list(self.widths)}, self.seeds, _rates())
        title = f"sweep: {len(planned)} models over learning rates and widths"
        backend = Local(pick_device("cpu"))
        device = device_text("cpu")
        with stages.stage(title, len(planned) * self.steps) as display, Store(path, device=device) as store:
            study = carry_out(store, backend, job, display, planned, "sweep")
            keys = {trial.key for trial in planned}
            return sweep_of(job.text, _DATA, [run for run in study.runs() if run.key in keys])

    def _job(self) -> Job:
        from mssp.data import load
        from mssp.replicas import Schedule
        from mssp.sweep.execution import Job

        return Job(load(_DATA), Schedule(self.steps, _BATCH, validation=_VALIDATION), MLPLadder)


def _rates() -> LearningRates:
    from mssp.sweep.transfer import LearningRates

    return LearningRates(*_RATES)


def _setting(scheme: Scheme) -> Setting:
    return Setting(scheme=scheme, regime=_REGIME, optimizer=_OPTIMIZER)


def _tuned(scheme: Scheme) -> Tuned:
    """The plain model that the scheme grows from."""
    return multipliers_for(_DATA, _setting(scheme))


def _plan(path: Path) -> None:
    base = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
    target = Shape(width=2048, expert_width=1024, experts=64, active=32, depth=8)
    target_plan = plan(target, base, lr=4e-3, weight_decay=0.1)
    heading = f"A plan, as for a Transformer: tuned at the base, carried to the target ({printing.title(target_plan)})"
    progress.show_lines([*printing.lines(target_plan, heading), ""], emphasised=[heading])
    write_whole(path, target_plan.json())


def _limit(path: Path, stages: Stages) -> None:
    def make(display: Progress) -> dict[str, Any]:
        from mssp.dmft import compare, document, example, solve
        from mssp.dmft.document import Overlay

        solution = solve(example(_REGIME, MSSP), samples=_SAMPLES, solves=_SOLVES, on_solved=display.advance)
        comparison = compare(solution, _NETWORKS, seeds=_SEEDS, on_width=display.advance)
        return document.as_json(solution, comparison) | {"overlay": Overlay.of(solution, comparison).json()}

    settings = {"samples": _SAMPLES, "solves": _SOLVES, "widths": _NETWORKS, "seeds": _SEEDS}
    units = _SOLVES + len(_NETWORKS)
    _make_unless_kept(path, settings, stages, "limit of infinite size, and networks that approach it", units, make)


def _hugging_face(path: Path, stages: Stages) -> None:
    settings = {"family": _FAMILY, "base": _SMALL, "target": _LARGE, "updates": _UPDATES}

    def make(display: Progress) -> dict[str, Any]:
        with without_plan_warnings():  # the file of the plan holds its warnings
            return _apply_to_hugging_face(display)

    _make_unless_kept(path, settings, stages, "a plan applied to a Hugging Face model", _UPDATES, make)


def _apply_to_hugging_face(display: Progress) -> dict[str, Any]:
    """Plans, adapts, initializes, groups, verifies and trains for a few steps, as users do with models of their own."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    import mssp

    small, large = (CONFIG_MAPPING[_FAMILY](**_SAME, **sizes) for sizes in (_SMALL, _LARGE))
    hf_plan = mssp.hf.plan(large, small, lr=4e-3, weight_decay=0.1)
    model = AutoModelForCausalLM.from_config(large)
    mssp.hf.adapt(model, base=small)
    mssp.initialize(model, hf_plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, hf_plan))
    mssp.verify(model, optimizer, hf_plan)
    counting = torch.arange(_TOKENS).expand(8, _TOKENS)
    losses = []
    for step in range(_UPDATES):
        tokens = (counting + 5 * torch.arange(8)[:, None] + step) % _VOCABULARY
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        display.advance()
    count = sum(1 for _ in model.parameters())
    return mssp.hf.by_name(hf_plan, large, small).json() | {"verified": count, "loss": [losses[0], losses[-1]]}


def _make_unless_kept(
    path: Path,
    settings: Mapping[str, Any],
    stages: Stages,
    title: str,
    units: int,
    make: Callable[[Progress], dict[str, Any]],
) -> None:
    """Makes a result and writes it to a file, unless the file holds it with the same settings and version already."""
    from mssp._environment import environment

    origin = json.loads(json.dumps({"mssp": __version__, **settings}))
    if _document(path).get("demo") == origin:
        stages.done(title, "kept")
        return
    with stages.stage(title, units) as display:
        result = make(display) | {"made_with": environment(device_text("cpu")), "demo": origin}
        write_whole(path, json.dumps(result, indent=1, ensure_ascii=False))


def _document(path: Path) -> dict[str, Any]:
    """The result in a file; empty where there is none, or something that the report cannot show."""
    from mssp.report.contents import read

    try:
        read([path])
        document: dict[str, Any] = parsed(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document


class Stages:
    """The stages of the demo: a live line while one is under way, and a line on the error stream when it is done."""

    def __init__(self, count: int) -> None:
        self._count, self._done = count, 0

    @contextmanager
    def stage(self, title: str, units: int) -> Iterator[Progress]:
        started = time.monotonic()
        with Progress(f"{self._done + 1}/{self._count} {title}", units) as display:
            yield display
        self.done(title, f"{time.monotonic() - started:.0f} s")

    def done(self, title: str, how: str) -> None:
        self._done += 1
        print(f"{self._done}/{self._count} {title} ({how})", file=sys.stderr, flush=True)


# -- the closing lines -------------------------------------------------------------------------------------------------


def _closing(folder: Path, contents: Contents, findings: list[Finding]) -> Iterator[str]:
    from mssp.report.findings import implemented, lr_at_the_widest, stable
    from mssp.sweep import transfer_text

    yield f"Found: one plain model, grown in Regime {_REGIME} (width and experts) with SGD by two schemes"
    for finding in findings:
        outcome, check = finding.outcome, finding.check
        assert outcome is not None
        assert check is not None
        first, last = outcome.summaries[0], outcome.summaries[-1]
        name = finding.setting.scheme.title
        answer = implemented(check).text
        correctness = {"yes": "implemented right", "no": "NOT as the theory says"}.get(answer, f"exponents: {answer}")
        stability = {"yes": "stable", "no": "not stable"}.get(stable(check).text, "stable or not is unclear")
        yield (
            f"  {name:<5} {correctness}, {stability}; top-5 {first.best.text(3)} at N = {first.width}, "
            f"{last.best.text(3)} at N = {last.width}; wider is better: {outcome.wider_is_better}"
        )
        drift = outcome.why_unclear or f"{outcome.drift.text(2)} doublings a doubling of N"
        yield (
            f"        best lr {outcome.drift_verdict} ({drift}); at N = {last.width} {lr_at_the_widest(outcome)}, "
            f"N = {first.width}'s loses {transfer_text.estimate_text(last.regret, 3)}"
        )
    for limit in contents.limits:
        yield f"  limit {limit.verdict}"
    for plan_by_name in contents.plans:
        document = _document(folder / f"{plan_by_name.name}.json")
        if "verified" in document:
            start, end = document["loss"]
            trained = f"loss {start:.2f} to {end:.2f} in {_UPDATES} steps"
            yield f"  model Hugging Face's {_FAMILY} by a plan: {document['verified']} parameters verified, {trained}"
    recorded = [
        f"{key.setting.scheme.title} {outcome.summaries[0].best.text(3)} to {outcome.summaries[-1].best.text(3)}"
        for sweep in contents.recorded
        for key, outcome in sweep.outcomes.items()
        if key.setting.optimizer is _OPTIMIZER
    ]
    yield f"  recorded on TinyImageNet (H200, N = 128 to 2048): {', '.join(recorded)}"
    yield f"Open {folder / 'report.html'}"
    yield "Next: your own model, docs/tutorial.md; mssp plan --help; mssp explain expert_out --regime II"
