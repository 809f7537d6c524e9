"""The panels of a dashboard, and how they become Grafana's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grafana_foundation_sdk.builders import bargauge, prometheus, stat, timeseries
from grafana_foundation_sdk.builders.common import ReduceDataOptions, StackingConfig
from grafana_foundation_sdk.builders.dashboard import FieldColor, ThresholdsConfig
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
)

from dashboards.expressions import checked

SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")

Query = tuple[str, str]
"""Expression and legend."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of a dashboard."""

    title: str
    kind: Literal["stat", "lines", "bars"]
    queries: tuple[Query, ...]
    unit: str = "none"
    span: int = 12
    """Width, of 24 columns."""
    height: int = 8
    about: str = ""
    """Explanation that the title does not give; shown at the panel's info icon."""
    stack: StackingMode = StackingMode.NONE
    red_from: float | None = None
    """Value from which a stat is bad."""
    green_from: float | None = None
    """Value from which a stat is good."""
    exemplars: bool = False
    colours: Mapping[str, str] = field(default_factory=dict)
    """Colours of lines, by name: what is good must not be red by chance."""

    def build(self) -> Any:
        """Returns the Grafana panel. Raises KeyError or ValueError as `checked`."""
        for expression, legend in self.queries:
            checked(expression, legend)
        made = {"stat": self._stat, "lines": self._lines, "bars": self._bars}[self.kind]()
        made = made.title(self.title).unit(self.unit).datasource(SOURCE).height(self.height).span(self.span)
        if self.about:
            made = made.description(self.about)
        for expression, legend in self.queries:
            query = prometheus.Dataquery().expr(expression).legend_format(legend)
            lines = self.kind == "lines"
            query = query.range().exemplar(self.exemplars) if lines else query.instant()
            made = made.with_target(query)
        return made

    def _stat(self) -> Any:
        made = stat.Panel().reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        steps = [(self.green_from, "green"), (self.red_from, "red")]
        colours = [(at, colour) for at, colour in steps if at is not None]
        first = "blue" if not colours else "red" if self.green_from is not None else "green"
        return made.thresholds(_thresholds(first, *colours))

    def _lines(self) -> Any:
        made = timeseries.Panel().stacking(StackingConfig().mode(self.stack))
        for name, colour in self.colours.items():
            fixed = {"mode": "fixed", "fixedColor": colour}
            made = made.override_by_name(name, [DynamicConfigValue(id_val="color", value=fixed)])
        if self.stack == StackingMode.NONE:
            return made
        # each cause keeps the colour of its name, here and tomorrow
        return (
            made.fill_opacity(60)
            .line_width(0)
            .color_scheme(FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        )

    def _bars(self) -> Any:
        return (
            bargauge.Panel().reduce_options(ReduceDataOptions().calcs(["lastNotNull"])).thresholds(_thresholds("blue"))
        )


def _thresholds(first: str, *then: tuple[float, str]) -> ThresholdsConfig:
    """Returns thresholds: the first colour, and the values from which another applies."""
    steps = [Threshold(color=first, value=None), *(Threshold(color=colour, value=at) for at, colour in then)]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
