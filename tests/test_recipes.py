"""The recipes of CONTRIBUTING.md, each followed to the letter in a copy of the package, and what a user then sees.

An edit makes one line of a file several. The recipe for a family is followed in ``tests/hf/test_new_family.py``.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import mssp
from mssp.cli import main

PACKAGE = Path(mssp.__file__).parent
ROOT = PACKAGE.parents[1]
MOST_FILES = 3


@dataclass(frozen=True)
class Edit:
    """A line of a file of the package, which stands there once, and the lines that take its place."""

    file: str
    line: str
    becomes: str


@dataclass(frozen=True)
class Seen:
    """What a command says: its exit code and what it prints."""

    code: int
    out: str
    err: str

    def row(self, name: str) -> list[str]:
        """The cells of a table's row."""
        found = next(line.split() for line in self.out.splitlines() if line.split()[:1] == [name])
        return found[1:]


@dataclass(frozen=True)
class Copy:
    """A copy of the package, which edits change and commands run."""

    folder: Path

    @classmethod
    def into(cls, folder: Path) -> Copy:
        shutil.copytree(PACKAGE, folder / "src" / "mssp")
        return cls(folder)

    def follow(self, edits: Sequence[Edit]) -> None:
        assert len({edit.file for edit in edits}) <= MOST_FILES
        for edit in edits:
            path = self.folder / "src" / "mssp" / edit.file
            lines = path.read_text(encoding="utf-8").splitlines()
            assert lines.count(edit.line) == 1, f"{edit.file} has no single line {edit.line!r}"
            lines[lines.index(edit.line)] = edit.becomes
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another Python, in which the package is the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the second process of a copy need not compile it again
        return subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )

    def script(self, code: str, *words: str) -> str:
        done = self.python("-c", code, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commands(self, *lines: str) -> list[Seen]:
        """What each of these commands says; they share a process, since starting one takes longer than they do."""
        return [Seen(*each) for each in json.loads(self.script(_COMMANDS, *lines))]


_COMMANDS = """
import contextlib, io, json, sys
from pathlib import Path
import mssp
from mssp.cli import main

assert Path(mssp.__file__).is_relative_to(Path.cwd())
seen = []
for line in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main(line.split()[1:])
        except SystemExit as end:
            code = end.code
    seen.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(seen))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy.into(tmp_path)


PLAN = "mssp plan --lr 0.1 --regime II --target.width 64 --target.expert-width 16 --target.experts 16"
PLAN += " --target.active 8 --target.depth 2"
TINY = "--widths 16 32 --steps 3 --seeds 2 --batch 8 --device cpu --multipliers ones"
SWEEP = "mssp sweep --widths 16 32 --steps 5 --seeds 2 --batch 8 --validation 20 --device cpu --regime II"

# -- an optimizer ------------------------------------------------------------------------------------------------------

OPTIMIZER = (
    Edit(
        "planning/setting.py",
        "OPTIMIZERS = (SGD, ADAM, ADAMW)",
        """\
RMSPROP = Optimizer(name="rmsprop", title="RMSprop", row="adam", moments=1, eps=1e-8)
OPTIMIZERS = (SGD, ADAM, ADAMW, RMSPROP)""",
    ),
    Edit(
        "replicas/optimizers.py",
        "from mssp.planning.setting import ADAM, ADAMW, SGD, Optimizer",
        "from mssp.planning.setting import ADAM, ADAMW, RMSPROP, SGD, Optimizer",
    ),
    Edit(
        "replicas/optimizers.py",
        "    def _bias_corrections(self) -> tuple[Tensor, Tensor]:",
        """\
    def rmsprop(self, name: str, gradient: Tensor, lr: Tensor) -> None:
        parameter, (square,) = self.parameters[name], self.moments[name]
        square.mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
        denominator = square.sqrt().add_(_broadcast_to(self.rates[name].eps, parameter))
        parameter.addcdiv_(gradient * _broadcast_to(-lr, parameter), denominator)

    def _bias_corrections(self) -> tuple[Tensor, Tensor]:""",
    ),
    Edit(
        "replicas/optimizers.py",
        "    ADAMW: ReplicaOptimizer.adam,",
        "    ADAMW: ReplicaOptimizer.adam,\n    RMSPROP: ReplicaOptimizer.rmsprop,",
    ),
)
_TORCHS = """
import mssp, mssp.apply, torch
from mssp.nn import MLPConfig, MLPMoE
from mssp.planning.setting import optimizer_named
from mssp.replicas.optimizers import ReplicaOptimizer
from mssp.replicas.program import Rates

lr, eps = torch.tensor([0.1, 0.01]).double(), torch.tensor([1e-8, 1e-2]).double()
weights = torch.randn(2, 5, 3)
singles = [weight.clone().requires_grad_() for weight in weights]
alone = [torch.optim.RMSprop([w], lr=a, eps=b) for w, a, b in zip(singles, lr.tolist(), eps.tolist())]
rates = {"w": Rates(lr, eps, torch.zeros(2).double(), torch.ones(2).double())}
together = ReplicaOptimizer(optimizer_named("rmsprop"), {"w": weights}, rates, (0.9, 0.999))
for _ in range(5):
    gradient = torch.randn(2, 5, 3)
    together.step({"w": gradient}, torch.ones(2, dtype=torch.bool))
    for single, each, optimizer in zip(singles, gradient, alone):
        single.grad = each
        optimizer.step()
print(max(float((a - b).abs().max()) for a, b in zip(weights, singles)))

config = MLPConfig(inputs=8, outputs=3, width=32, expert_width=16, experts=4)
plan = mssp.plan(config.shape, regime="II", lr=0.1, optimizer="rmsprop")
model = MLPMoE(config)
mssp.initialize(model, plan)
optimizer = mssp.apply.optimizer_for(model, plan)
mssp.verify(model, optimizer, plan)
print(type(optimizer).__name__)
"""


@pytest.mark.slow
def test_an_optimizer(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    """It is planned, checked, swept and stored by its word, replicas take its steps, and users get torch's own."""
    assert main(["explain", "router"]) == 0
    before = capsys.readouterr().out
    assert main([*PLAN.split()[1:], "--optimizer", "rmsprop"]) == 2
    assert capsys.readouterr().err.endswith("--optimizer must be one of sgd, adam, adamw, got 'rmsprop'\n")
    copy.follow(OPTIMIZER)
    explained, planned, adams, checked, swept, plain = copy.commands(
        "mssp explain router",
        f"{PLAN} --optimizer rmsprop",
        f"{PLAN} --optimizer adam",
        f"mssp check {TINY} --optimizer rmsprop",
        f"{SWEEP} --optimizer rmsprop adam --scheme mssp --multipliers ones --lrs 0.01 --export runs.csv",
        f"{SWEEP} --optimizer rmsprop --scheme mssp --multipliers plain --lr-points 2",
    )
    assert explained.out == before
    assert planned.out.startswith("MSSP, Regime II, RMSprop\n")
    assert planned.out.replace("RMSprop", "Adam") == adams.out
    assert checked.out.startswith("MSSP · Regime II · RMSprop\n")
    assert checked.row("rate/router")[-2:] == ["−1", "ok"]
    assert checked.row("eps/router")[-2:] == ["−1", "ok"]
    assert swept.code == plain.code == 0
    assert "Regime II · mssp · rmsprop" in swept.out
    with (copy.folder / "runs.csv").open(encoding="utf-8") as file:
        runs = list(csv.DictReader(file))
    assert sorted(run["optimizer"] for run in runs) == ["adam"] * 4 + ["rmsprop"] * 4
    assert all(float(run["train_loss"]) > 0 for run in runs)
    difference, kind = copy.script(_TORCHS).split()
    assert float(difference) < 1e-6
    assert kind == "RMSprop"


# An optimizer of matrices alone, with a row of its own: what has none goes to another optimizer.
WITH_A_ROW = (
    Edit(
        "planning/setting.py",
        "OPTIMIZERS = (SGD, ADAM, ADAMW)",
        """\
TURNER = Optimizer(name="turner", title="Turner", row="turner", moments=1, rest=ADAMW)
OPTIMIZERS = (SGD, ADAM, ADAMW, TURNER)""",
    ),
    Edit(
        "planning/rules.py",
        "    adam: Row[Power] | None = None",
        "    adam: Row[Power] | None = None\n    turner: Row[Power] | None = None",
    ),
    Edit(
        "planning/rules.py",
        "        sgd=for_all(fan_out / fan_in),",
        "        sgd=for_all(fan_out / fan_in),\n        turner=for_all((fan_out / fan_in) ** half),",
    ),
)


def test_an_optimizer_with_a_row_of_its_own(copy: Copy) -> None:
    copy.follow(WITH_A_ROW)
    planned, adamws, checked = copy.commands(
        f"{PLAN} --optimizer turner",
        f"{PLAN} --optimizer adamw",
        f"mssp check {TINY} --optimizer turner",
    )
    assert planned.out.startswith("MSSP, Regime II, Turner\n")
    assert planned.row("hidden") == ["0.125", "N⁻¹ᐟ²", "0.1", "1"]
    assert planned.row("router") == adamws.row("router")
    # Replicas have no update of it, and say so.
    assert checked.code == 2
    message = "replicas have no update of Turner, only of SGD, Adam, AdamW: add it to _UPDATES"
    assert checked.err == f"mssp: error: {message}\n"


# -- a scheme ----------------------------------------------------------------------------------------------------------

SCHEME = (
    Edit(
        "planning/rules.py",
        "def regime_free(lr: Power) -> Callable[[str], Rows]:",
        """\
def calm_embedding(rows: Callable[[str], Rows]) -> Callable[[str], Rows]:
    \"\"\"Other rows with an embedding that learns at 1/N.\"\"\"

    def changed(role: str) -> Rows:
        own = rows(role)
        return replace(own, sgd=for_all(1 / N), adam=for_all(1 / N)) if role == "embedding" else own

    return changed


def regime_free(lr: Power) -> Callable[[str], Rows]:""",
    ),
    Edit(
        "planning/setting.py",
        "SCHEMES = (MSSP, MUP, MUP_HEURISTIC, SP, NTP, JIANG)",
        """\
CALM = Scheme(name="calm", title="Calm", rows=rules.calm_embedding(MUP.rows))
SCHEMES = (MSSP, MUP, MUP_HEURISTIC, SP, NTP, JIANG, CALM)""",
    ),
    Edit("planning/explanation.py", "    ADAM,", "    ADAM,\n    CALM,"),
    Edit(
        "planning/explanation.py",
        "SCHEME_NOTES: dict[Scheme, tuple[str, str]] = {",
        """\
SCHEME_NOTES: dict[Scheme, tuple[str, str]] = {
    CALM: ("muP with an embedding that learns no faster than a router.", "nowhere"),""",
    ),
)


@pytest.mark.slow
def test_a_scheme(copy: Copy) -> None:
    """It is planned, explained with its note, checked by its rules, swept, drawn and reported beside others."""
    copy.follow(SCHEME)
    planned, mups, explained, checked, swept, reported, refused = copy.commands(
        f"{PLAN} --scheme calm",
        f"{PLAN} --scheme mup",
        "mssp explain embedding --scheme calm",
        f"mssp check {TINY} --scheme calm --regime II",
        f"{SWEEP} --scheme calm mup --multipliers ones --lrs 0.01 --plot rates.html --plot-scaling scores.html",
        "mssp report runs.sqlite",
        f"{PLAN} --scheme louder",
    )
    assert planned.out.startswith("Calm, Regime II, AdamW\n")
    assert planned.row("embedding")[:4] == ["1", "D⁻¹ᐟ²", "0.001563", "N⁻¹"]
    assert planned.row("expert_out") == mups.row("expert_out")
    assert explained.out.splitlines()[2:8] == [
        "  Calm      Regime I  Regime II  Regime III",
        "  ────────  ────────  ─────────  ──────────",
        "  init std  D⁻¹ᐟ²     D⁻¹ᐟ²      D⁻¹ᐟ²",
        "  SGD lr    N⁻¹       N⁻¹        N⁻¹",
        "  Adam lr   N⁻¹       N⁻¹        N⁻¹",
        "  Adam eps  N⁻¹       N⁻¹        N⁻¹",
    ]
    assert "why    muP with an embedding that learns no faster than a router.\nwhere  nowhere" in explained.out
    # The paper's tables are silent about it: what is expected follows from its rules, and from the simulation by them.
    assert checked.out.startswith("Calm · Regime II · SGD\n")
    assert checked.row("rate/embedding")[-2:] == ["−1", "ok"]
    assert "(simulated)" in checked.row("aggregate/init")
    assert "\npass: all " in checked.out
    assert swept.code == reported.code == 0
    assert "Regime II · calm · sgd" in swept.out
    for file in ("rates.html", "scores.html", "report.html"):
        assert "Calm" in (copy.folder / file).read_text(encoding="utf-8"), file
    assert refused.err.endswith("one of mssp, mup, mup-heuristic, sp, ntp, jiang, calm, got 'louder'\n")


# -- a quantity --------------------------------------------------------------------------------------------------------

QUANTITY = (
    Edit(
        "measure/quantities.py",
        "EXPERT_DISTANCE = Kind(",
        """\
GAIN = Kind(
    name="gain",
    section=_TOLD,
    meaning="By what a layer's initial weights multiply an input that they know nothing of.",
    accuses="the gain of {role}",
    always=True,
)
EXPERT_DISTANCE = Kind(""",
    ),
    Edit(
        "measure/quantities.py",
        "ACCUSING = (EXPERT_DISTANCE, WEIGHTS, AGGREGATION, EPS, RATE)",
        "ACCUSING = (EXPERT_DISTANCE, GAIN, WEIGHTS, AGGREGATION, EPS, RATE)",
    ),
    Edit("measure/moe_terms.py", "    EXPERT_DISTANCE,", "    EXPERT_DISTANCE,\n    GAIN,"),
    Edit(
        "measure/moe_terms.py",
        '            WEIGHTS("expert_in"): self.in_0,',
        """\
            GAIN("expert_in"): self.in_0 * self.in_0.shape[-1] ** 0.5,
            GAIN("expert_out"): self.out_0 * self.out_0.shape[-2] ** 0.5,
            WEIGHTS("expert_in"): self.in_0,""",
    ),
)
EXPECTED = (
    Edit(
        "theory/implied.py",
        "from mssp.measure.quantities import AGGREGATION, EPS, FAITHFULNESS, GRADIENT, RATE, WEIGHTS, Quantity",
        "from mssp.measure.quantities import AGGREGATION, EPS, FAITHFULNESS, GAIN, GRADIENT, RATE, WEIGHTS, Quantity",
    ),
    Edit(
        "theory/implied.py",
        "            WEIGHTS: self._initial,",
        "            WEIGHTS: self._initial,\n            GAIN: self._gain,",
    ),
    Edit(
        "theory/implied.py",
        "    def _rate(self, role: str, step: int) -> Exponent | None:",
        """\
    def _gain(self, role: str, step: int) -> Exponent:
        return Exponent(Fraction(0))

    def _rate(self, role: str, step: int) -> Exponent | None:""",
    ),
)


# The panel that two quantities share, and its lines.
_DRAWN = """
import json, sys
from pathlib import Path
from mssp.coordcheck import Check
from mssp.report.figures.checks import exponents_figure

check = Check.from_json(json.loads(Path(sys.argv[1]).read_text()))
(panel,) = exponents_figure(check, ["gain/expert_in", "gain/expert_out"]).panels
print(panel.heading, *(series.name for series in panel.series))
"""


@pytest.mark.slow
def test_a_quantity(copy: Copy) -> None:
    """It is measured and shown; once something is expected of it, it is judged, and a miss of it names its setting."""
    assert len({edit.file for edit in (*QUANTITY, *EXPECTED)}) <= MOST_FILES
    check = f"mssp check {TINY} --scheme mssp"
    copy.follow(QUANTITY)
    (measured,) = copy.commands(f"{check} --regime II")
    assert measured.row("gain/expert_in")[-1] == measured.row("gain/expert_out")[-1] == "unpredicted"
    assert measured.code == 0

    copy.follow(EXPECTED)
    missed, met = copy.commands(f"{check} --regime II", f"{check} --regime I --json")
    assert missed.row("gain/expert_in")[-2:] == ["0", "ok"]
    assert missed.row("gain/expert_out")[-2:] == ["0", "off"]
    assert missed.code == 1
    _, _, verdict = missed.out.partition("FAIL: 1 of ")
    assert verdict.splitlines()[1:3] == [
        "  likely cause: the gain of expert_out scales as N^0.42, the rule says N^0",
        "  gain/expert_out grows as N^0.42, expected N^0",
    ]
    found = json.loads(met.out)["quantities"]
    assert {name: each["verdict"] for name, each in found.items() if name.startswith("gain")} == {
        "gain/expert_in": "ok", "gain/expert_out": "ok"
    }  # fmt: skip
    (copy.folder / "met.json").write_text(met.out, encoding="utf-8")
    assert {"gain", "expert_in", "expert_out"} <= set(copy.script(_DRAWN, "met.json").split())


def test_the_glossary_asks_for_a_new_quantity(copy: Copy) -> None:
    """The test that the recipe names, with the copy instead of the package."""
    copy.follow(QUANTITY)
    for name in ("docs/glossary.md", "tests/measure/test_quantities.py", "tests/coordcheck/synthetic.py"):
        (copy.folder / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, copy.folder / name)
    chosen = "glossary_has or groups_of_kinds or read_as_it_was_written"
    done = copy.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/measure/test_quantities.py", "-k", chosen)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1
    assert "test_the_glossary_has_every_kind" in failed[0]
    row = "| `gain/ROLE` | By what a layer's initial weights multiply an input that they know nothing of. |"
    assert "paste this into docs/glossary.md:" in done.stdout
    assert row in done.stdout
