"""The sections of a report, one for each question that a reader asks, and the summary before them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from mssp._constraints import kind_of, takes, word
from mssp._environment import __version__
from mssp.coordcheck import text as check_text
from mssp.coordcheck.result import Check
from mssp.measure.quantities import AGGREGATE, LARGEST_LOAD
from mssp.planning import printing
from mssp.planning.setting import Optimizer, Regime, Setting, title_of
from mssp.report import run_sections
from mssp.report.contents import Checked, Contents, NamedPlan, Search, Sweep, Swept
from mssp.report.figure import Figure
from mssp.report.figures.agreement import agreement_figure
from mssp.report.figures.checks import exponents_figure, router_figure, sizes_figure
from mssp.report.figures.limits import overlay_figure
from mssp.report.figures.sweeps import MAX_PANELS, heatmaps, scaling_figure, transfer_figure
from mssp.report.findings import findings_of, overview, tags
from mssp.report.page.document import Block, Bullets, Cell, Chart, Command, Folded, Row, Section, Table, Words, page
from mssp.sweep import grids, transfer_text
from mssp.sweep.transfer import Contender, Outcome
from mssp.sweep.transfer_text import RecordedSweep

_TERMS = ("init", "propagating", "effective", "cross")  # terms of the sum over experts
_VERDICTS = {"ok": "good", "off": "bad"}
Tags = Mapping[str, str]
Thing = TypeVar("Thing")


@takes(contents=kind_of(Contents), title=word)
def report(contents: Contents, title: str) -> str:
    """The HTML page of everything that was read."""
    return page(title, summary(contents), sections(contents), f"Made by mssp {__version__}.")


def summary(contents: Contents) -> list[Block]:
    """The answers of all sweeps and checks, or commands for a reader who has none."""
    if contents.is_empty:
        return [
            Words("There is nothing here yet: no study, no check, no limit and no plan. These commands make some:"),
            Command("mssp sweep --data spectra --widths 64 128 256 --steps 300 --store runs.sqlite"),
            Command("mssp check --regime II --data spectra --json > check.json"),
            Command("mssp report runs.sqlite check.json -o report.html"),
        ]
    findings = findings_of(contents)
    blocks: list[Block] = [Words(note) for note in _unfinished(contents.sweeps)]
    blocks += run_sections.summary_blocks(contents.runs)
    if findings:
        blocks += [overview(findings), *(Bullets([finding.sentence], finding.tags) for finding in findings)]
    return blocks or [Words("There is no sweep and no check among what was read, and so no verdict.")]


def _unfinished(sweeps: Iterable[Sweep]) -> Iterator[str]:
    """A note for every sweep in which runs are missing, or cannot be checked."""
    for sweep in sweeps:
        counts = sweep.counts
        missing = sum(counts[status] for status in ("pending", "running", "failed"))
        if missing:
            failed = f", {counts['failed']} of which failed" if counts["failed"] else ""
            yield (
                f"Not finished: {missing} of {sum(counts.values())} runs of {sweep.experiment} are missing{failed}. "
                "What follows is of those that are there; the same `mssp sweep` command goes on with the rest."
            )
        if sweep.unchecked:
            yield (
                f"Unchecked: {sweep.unchecked} runs of {sweep.experiment} have no checksum, since an older mssp kept "
                "them. A number of theirs that flipped on the disk would not be noticed."
            )


def sections(contents: Contents) -> list[Section]:
    """The sections that have something to show."""
    runs = contents.runs
    candidates = [
        Section("How did it train?", run_sections.training_blocks(runs), "training"),
        Section("Alarms", run_sections.alarm_blocks(runs), "alarms"),
        Section("Are the routers well?", run_sections.router_blocks(runs), "health"),
        Section("How large is everything?", run_sections.size_blocks(runs), "sizes"),
        Section("How fast is it?", run_sections.speed_blocks(runs), "speed"),
        Section("Does the best learning rate stay?", _transfer_blocks(contents.sweeps), "transfer"),
        Section("Is wider better?", _scaling_blocks(contents.sweeps), "scaling"),
        Section("Recorded elsewhere", _recorded_blocks(contents.recorded), "recorded"),
        Section("Does it scale as the theory says?", _check_blocks(contents.checks), "check"),
        Section("What the experts add up to", _chart_blocks(contents.checks, "aggregation", _aggregation), "experts"),
        Section("Where inputs go", _chart_blocks(contents.checks, "router", _router), "router"),
        Section("Multipliers", _search_blocks(contents.searches), "multipliers"),
        Section("What it grows to", _limit_blocks(contents), "limit"),
        Section("The plan", _plan_blocks(contents.plans), "plan"),
        Section("How it was made", _environment_blocks(contents), "environment"),
    ]
    return [section for section in candidates if section.blocks]


# -- sweeps ------------------------------------------------------------------------------------------------------------


def _transfer_blocks(sweeps: Sequence[Sweep]) -> list[Block]:
    blocks: list[Block] = []
    for sweep, group, label, name in _groups(sweeps):
        which = tags(group[0].contender.setting, sweep.data)
        outcomes = {each.contender: each.outcome for each in group}
        figure = transfer_figure(outcomes, f"{label}: scores over the learning rate ({sweep.experiment})")
        blocks.append(Chart(figure, f"transfer-{name}", which))
        if _start_is_shared(group):
            blocks.append(Words(_SHARED_START.format(width=group[0].base_width), which))
        blocks.append(_widths_table(f"transfer-{name}-table", outcomes, which))
    return blocks


def _scaling_blocks(sweeps: Sequence[Sweep]) -> list[Block]:
    blocks: list[Block] = []
    for sweep, group, label, name in _groups(sweeps):
        figure = scaling_figure({each.contender: each.outcome for each in group}, f"{label}: {sweep.experiment}")
        which = tags(group[0].contender.setting, sweep.data)
        blocks.append(Chart(figure, f"scaling-{name}", which))
    return blocks


def _groups(sweeps: Sequence[Sweep]) -> Iterator[tuple[Sweep, list[Swept], str, str]]:
    """Settings of one regime and optimizer, as many as fit in a figure: the sweep, the settings, a label and a name."""
    for number, sweep in enumerate(sweeps, 1):
        for label, alike in _by_label((each.contender.setting, each) for each in sweep.swept).items():
            for part, start in enumerate(range(0, len(alike), MAX_PANELS)):
                more = f"-{part + 1}" if part else ""
                yield sweep, alike[start : start + MAX_PANELS], label, f"{number}-{_slug(label)}{more}"


def _by_label(things: Iterable[tuple[Setting, Thing]]) -> dict[str, list[Thing]]:
    """Groups by regime and optimizer, such as ``Regime II · SGD``."""
    groups: dict[str, list[Thing]] = {}
    for setting, thing in things:
        label = " · ".join(filter(None, (title_of(setting.regime), setting.optimizer.title)))
        groups.setdefault(label, []).append(thing)
    return groups


_SHARED_START = (
    "All schemes grow from one plain model of N = {width}: initial weights of standard deviation fan_in^(−1/2), a zero "
    "readout, one learning rate for everything. There they are the same model, but for what a scheme ties or starts at "
    "zero; what each makes of it as it grows is what differs."
)


def _start_is_shared(group: Sequence[Swept]) -> bool:
    """Whether all settings grow from the same plain model, which is the narrowest of the sweep."""
    narrowest = min(summary.width for each in group for summary in each.outcome.summaries)
    plain = all(each.plain and not Contender(each.contender.setting, each.contender.active).details for each in group)
    return plain and len(group) > 1 and {each.base_width for each in group} == {narrowest}


def _widths_table(name: str, outcomes: Mapping[Contender, Outcome], which: Tags) -> Table:
    rows = []
    for contender, outcome in outcomes.items():
        label = " · ".join(filter(None, (contender.setting.scheme.title, contender.details)))
        _, *body = transfer_text.cells(outcome)
        rows += [Row([label, *cells], which) for cells in body]
    header = ["scheme", "N", "best lr", "log2 best lr", "best", "at the narrowest's lr", "regret", "largest stable lr"]
    return Table(header, rows, name, "Means over seeds with 95 % intervals; regret is what the narrowest's lr loses.")


def _recorded_blocks(sweeps: Sequence[RecordedSweep]) -> list[Block]:
    blocks: list[Block] = []
    for number, sweep in enumerate(sweeps, 1):
        data = sweep.experiment.partition(",")[0]
        source = f"Not of this run: recorded on {sweep.experiment} ({sweep.made})."
        blocks.append(
            Words(source if sweep.made else f"A sweep of which the outcome alone was kept: {sweep.experiment}.")
        )
        for label, alike in _by_label((each.setting, each) for each in sweep.outcomes).items():
            group = {contender: sweep.outcomes[contender] for contender in alike}
            which = tags(alike[0].setting, data)
            name = f"recorded-{number}-{_slug(label)}"
            figure = scaling_figure(group, f"Recorded: {label}, {sweep.experiment}")
            blocks.append(Chart(figure, name, which))
            blocks.append(Bullets([_recorded_words(contender, each) for contender, each in group.items()], which))
            blocks.append(Folded("Every width", [_widths_table(f"{name}-table", group, which)], which))
        blocks += [Command(sweep.command)] if sweep.command else []
    return blocks


def _recorded_words(contender: Contender, outcome: Outcome) -> str:
    drift, *trends = transfer_text.verdicts(outcome)
    name = " · ".join(filter(None, (contender.setting.scheme.title, contender.details)))
    return f"{name}: {drift}; {'; '.join(trends)}."


# -- checks ------------------------------------------------------------------------------------------------------------


def _check_blocks(checks: Sequence[Checked]) -> list[Block]:
    if not checks:
        return []
    blocks: list[Block] = [
        Words(
            "Every term of the dynamics is measured at several sizes, and the exponent of its growth is compared with "
            "that which the theory gives for this scheme. Implemented right: what is measured is what is predicted. "
            "Stable: nothing changes with size that should not, and so hyperparameters carry over."
        )
    ]
    groups: dict[tuple[Regime | None, Optimizer, str], dict[str, Checked]] = {}
    for each in checks:
        setting = each.check.setting
        group = groups.setdefault((setting.regime, setting.optimizer, each.data), {})
        name = each.name
        group[name if name not in group else f"{name} ({len(group) + 1})"] = each
    for number, ((regime, optimizer, data), group) in enumerate(groups.items(), 1):
        label = " · ".join(filter(None, (title_of(regime), optimizer.title, data)))
        figure = agreement_figure(
            {name: each.check for name, each in group.items()}, f"{label}: predicted and measured exponents"
        )
        blocks.append(Chart(figure, f"agreement-{number}", tags(next(iter(group.values())).check.setting, data)))
    for number, each in enumerate(checks, 1):
        which = tags(each.check.setting, each.data)
        blocks.append(Chart(exponents_figure(each.check), f"exponents-{number}", which))
        heading = each.name
        blocks.append(Bullets([f"{heading}: {line.strip()}" for line in check_text.verdict_lines(each.check)], which))
        table = _quantities_table(each, f"quantities-{number}", which)
        blocks.append(Folded(f"Every quantity of {heading}", [table], which))
    return blocks


def _quantities_table(checked: Checked, name: str, which: Tags) -> Table:
    (_, *header), by_section = check_text.table(checked.check)
    body = []
    for cells in (cells for rows in by_section.values() for cells in rows):
        word, _, rest = cells[-1].partition(",")
        verdict = "bad" if rest else _VERDICTS.get(word, "")
        body.append(Row([*cells[:-1], Cell(cells[-1], verdict)], which))
    return Table(["quantity", *header], body, name, "Sizes after the last update, and the exponent that is judged.")


def _chart_blocks(checks: Sequence[Checked], name: str, draw: Callable[[Check], Figure | None]) -> list[Block]:
    """A chart of every check for which there is something to draw."""
    return [
        Chart(figure, f"{name}-{number}", tags(checked.check.setting, checked.data))
        for number, checked in enumerate(checks, 1)
        if (figure := draw(checked.check))
    ]


def _aggregation(check: Check) -> Figure | None:
    names = [name for term in _TERMS if (name := AGGREGATE(term)) in check.quantities]
    return sizes_figure(check, names) if names else None


def _router(check: Check) -> Figure | None:
    return router_figure(check) if LARGEST_LOAD() in check.quantities else None


# -- other sections ----------------------------------------------------------------------------------------------------


def _search_blocks(searches: Sequence[Search]) -> list[Block]:
    blocks: list[Block] = []
    for number, search in enumerate(searches, 1):
        best = grids.point_of(search.best)
        setting = search.contender.setting
        which = tags(setting, search.data)
        near = grids.points_at_best_lr(search.best, search.tried)
        points, scores = [point for point, _ in near], [score for _, score in near]
        title = f"{setting.title}: multipliers around their optimum at N = {search.best.width} ({search.experiment})"
        better = search.metric.higher_is_better
        figure = heatmaps(
            points, scores, grids.MULTIPLIERS, best, search.metric.label, title=title, higher_is_better=better
        )
        blocks.append(Chart(figure, f"multipliers-{number}", which))
        multipliers = ", ".join(f"{name} {value:g}" for name, value in best.items())
        blocks.append(
            Words(
                f"The best of {len(search.tried)} runs: {search.metric.label} {search.score:.4f} at lr "
                f"{search.best.lr:g}, {multipliers}. The best of many is partly luck."
            )
        )
    return blocks


def _limit_blocks(contents: Contents) -> list[Block]:
    blocks: list[Block] = []
    for number, limit in enumerate(contents.limits, 1):
        blocks.append(Chart(overlay_figure(limit), f"limit-{number}", {"regime": limit.regime}))
        blocks += [Words(f"Finite networks beside the limit: {limit.verdict}.")] if limit.verdict else []
    return blocks


def _plan_blocks(plans: Sequence[NamedPlan]) -> list[Block]:
    blocks: list[Block] = []
    for number, each in enumerate(plans, 1):
        plan = each.plan
        facts = [f"{name}: {' '.join(content.split())}" for name, content in printing.facts(plan)]
        blocks += [Words(f"{each.name}: {printing.title(plan)}."), Bullets([*facts, *plan.warnings])]
        by_role = _plain_table(printing.columns(plan), printing.rows(plan), f"plan-{number}-roles", "By role.")
        if not each.header:
            blocks.append(by_role)
            continue
        blocks.append(_plain_table(each.header, each.rows, f"plan-{number}-parameters", "By parameter."))
        blocks += [Bullets(list(each.factors))] if each.factors else []
        blocks.append(Folded("By role", [by_role]))
    return blocks


def _plain_table(header: Sequence[str], rows: Iterable[Sequence[str]], name: str, caption: str) -> Table:
    return Table(header, [Row([" ".join(cell.split()) for cell in row]) for row in rows], name, caption)


def _environment_blocks(contents: Contents) -> list[Block]:
    if not contents.environments:
        return []
    names = ("device", "mssp", "torch", "numpy", "python", "started")
    rows = [Row([made, *(str(each.get(name) or "") for name in names)]) for made, each in contents.environments]
    return [Table(["what", *names], rows, "environments"), Words(f"Read: {', '.join(contents.sources)}.")]


def _slug(text: str) -> str:
    return re.sub(r"\W+", "-", text.lower()).strip("-")
