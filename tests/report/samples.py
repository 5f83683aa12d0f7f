"""One figure of each kind, for tests of what is done to all of them."""

from __future__ import annotations

from pathlib import Path

from mssp.report.figure import Figure
from mssp.report.figures.agreement import agreement_figure
from mssp.report.figures.checks import evaluation_figure, exponents_figure, router_figure, sizes_figure
from mssp.report.figures.limits import dmft_figure
from mssp.report.figures.runs import loss_figure, routers_figure
from mssp.report.figures.sweeps import heatmaps, scaling_figure, transfer_figure
from mssp.train.logged_run import LoggedRun
from tests.report.figures.test_agreement import RIGHT, WRONG
from tests.report.figures.test_checks import DENSE, WHOLE
from tests.report.figures.test_limits import COMPARISON, LIMIT, TRIVIAL
from tests.report.figures.test_sweeps import BEST, NAMES, neighbours, of, transfer
from tests.report.reading import there

SCHEMES = ("mup", "mssp", "sp", "mup-heuristic", "ntp", "jiang")
SETTINGS = {of(s, r): transfer(drift=i / 2) for r in ("II", "III") for i, s in enumerate(SCHEMES[:3])}
RUNS = {
    name: LoggedRun(Path(name), numbers={
        "loss": {step: 1 + 1 / step for step in range(1, 4)}, "routers/load": {1: 2.0}, "routers/starved": {1: 0.0},
        "routers/logits": {1: 0.5, 3: 50.0}, "routers/logits/worst": {1: 0.25},
    }, validation={3: 1.5})
    for name in ("low", "high")
}  # fmt: skip
FIGURES: dict[str, Figure] = {
    "transfer": transfer_figure(SETTINGS, "Does the best learning rate stay where it is?"),
    "one setting": transfer_figure({of("mssp"): transfer(drift=1.5)}, "Transfer"),
    "scaling": scaling_figure({of(s): transfer() for s in SCHEMES} | SETTINGS),
    "heatmaps": heatmaps(*neighbours(), NAMES, BEST, "accuracy"),
    "one heatmap": heatmaps(*neighbours(), NAMES[:2], {name: BEST[name] for name in NAMES[:2]}, "accuracy"),
    "sizes": sizes_figure(WHOLE),
    "exponents": exponents_figure(WHOLE),
    "evaluation": evaluation_figure(WHOLE),
    "router": router_figure(WHOLE),
    "agreement": agreement_figure({"μP": WHOLE, "MSSP": RIGHT, "wrong": WRONG}),
    "evaluation of a dense model": evaluation_figure(DENSE),
    "limit": dmft_figure(LIMIT),
    "limit and networks": dmft_figure(LIMIT, COMPARISON),
    "trivial limit": dmft_figure(TRIVIAL),
    "losses of runs": there(loss_figure(RUNS)),
    "routers of runs": there(routers_figure(RUNS)),
}
