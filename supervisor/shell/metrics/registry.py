"""The metrics of one process, as defined by the catalogue (`supervisor.shell.metrics.catalogue`), and an agent's listener."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from supervisor.shell.metrics.catalogue import CATALOGUE, Metric
from supervisor.shell.metrics.listener import Handler, Listener
from supervisor.wire.security import Security

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would be as many series again, and no rule asks for them

_BY_NAME = {metric.name: metric for metric in CATALOGUE}


class Metrics:
    """The catalogue's metrics in one registry, created at their first use."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._made: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, **labels: object) -> Counter:
        """Returns the counter with these labels. Raises KeyError for an unknown name, ValueError for other labels."""
        made = self._get(name, "counter", labels)
        assert isinstance(made, Counter)
        return made

    def gauge(self, name: str, **labels: object) -> Gauge:
        """Returns the gauge with these labels; errors as for `counter`."""
        made = self._get(name, "gauge", labels)
        assert isinstance(made, Gauge)
        return made

    def histogram(self, name: str, **labels: object) -> Histogram:
        """Returns the histogram with these labels; errors as for `counter`."""
        made = self._get(name, "histogram", labels)
        assert isinstance(made, Histogram)
        return made

    def drop(self, prefix: str, **labels: object) -> None:
        """Drops the series with these labels, of metrics whose names begin with `prefix`: their subject is gone, or now
        belongs to another exporter. None as a label's value matches any."""
        wanted = {label: str(value) for label, value in labels.items() if value is not None}
        for name, made in self._made.items():
            if name.startswith(prefix) and labels.keys() <= set(_BY_NAME[name].labels):
                made.remove_by_labels(wanted) if wanted else made.clear()

    def _get(self, name: str, kind: str, labels: dict[str, object]) -> Counter | Gauge | Histogram:
        metric = _BY_NAME.get(name)
        if metric is None or metric.kind != kind:
            raise KeyError(f"the catalogue has no {kind} {name!r}: add it to supervisor/shell/metrics/catalogue.py")
        if set(labels) != set(metric.labels):
            raise ValueError(f"{name} has the labels {metric.labels}, not {tuple(labels)}")
        for label, values in metric.values.items():
            if str(labels[label]) not in values:
                raise ValueError(f"{name}: {label} is one of {', '.join(values)}, not {labels[label]}")
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = _make(metric, self.registry)
        return made.labels(**{label: str(value) for label, value in labels.items()}) if labels else made


def serve(registry: CollectorRegistry, address: str, port: int, security: Security) -> int:
    """Serves /metrics in a thread, and returns the port. With certificates it is TLS, and only for clients that show one.

    Raises OSError if the port is taken.
    """
    server = Listener(address, port, registry, security, Handler)
    server.serve()
    return int(server.server_port)


def _make(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if metric.kind == "counter":
        return Counter(metric.name, metric.help, metric.labels, registry=registry)
    if metric.kind == "gauge":
        return Gauge(metric.name, metric.help, metric.labels, registry=registry)
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
