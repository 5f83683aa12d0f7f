"""What is measured of a run while it trains: the health of its routers, and the sizes of all terms."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from mssp.measure.alarms import Alarm
from mssp.measure.monitoring import Monitor, monitor
from mssp.measure.router_health import RouterHealth
from mssp.planning.recipe import PlanWarning
from mssp.train.language_models import LanguageModel
from mssp.train.settings import WatchSettings


class WatchedRun:
    """The routers and the terms of a run. It is made when the model has its initial weights, also where a run goes on.

    Args:
        rows: on which the sizes of all terms are measured.
    """

    def __init__(
        self, model: LanguageModel, module: nn.Module, optimizer: Optimizer, settings: WatchSettings, rows: Tensor
    ) -> None:
        self._sizes: list[tuple[int, Mapping[str, float]]] = []
        self._health: RouterHealth | None = None
        self._monitor: Monitor | None = None
        if settings.routers_every is not None:
            try:
                self._health = RouterHealth(module, model.plan, optimizer, every=settings.routers_every)
            except ValueError as error:
                warnings.warn(f"the routers are not watched: {error}", PlanWarning, stacklevel=3)
        if settings.monitor_every is not None:
            every, probe = settings.monitor_every, model.probe(rows)
            self._monitor = monitor(module, model.plan, optimizer=optimizer, every=every, probe=probe, to=self._keep)

    def _keep(self, step: int, sizes: Mapping[str, float]) -> None:
        self._sizes.append((step, dict(sizes)))

    def after_update(self, step: int) -> tuple[Mapping[str, float], list[Alarm]]:
        """The numbers of the routers after an update, which is counted from 0, and the alarms that it raised.

        The alarms name the step as the log does, which counts updates.
        """
        numbers, alarms = ({}, []) if self._health is None else self._health.step(step)
        return numbers, [replace(alarm, step=step + 1) for alarm in alarms]

    def loads(self) -> Mapping[str, list[float]]:
        """The share of tokens that each expert got when the routers were last looked at, layer by layer."""
        return {} if self._health is None else self._health.loads

    def new_sizes(self) -> list[tuple[int, Mapping[str, float]]]:
        """The sizes that were measured since the last call, each after how many updates."""
        sizes, self._sizes = self._sizes, []
        return sizes

    def state(self) -> dict[str, Any] | None:
        """What alarms of a run that goes on depend on, for its checkpoint."""
        return None if self._health is None else self._health.state_dict()

    def go_on_from(self, step: int, state: Mapping[str, Any] | None) -> None:
        """Go on from a checkpoint after so many steps."""
        if self._monitor is not None:
            self._monitor.go_on_from(step)
        if self._health is not None and state is not None:
            self._health.load_state_dict(state)
