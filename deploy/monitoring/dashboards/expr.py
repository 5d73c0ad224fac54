"""PromQL in the few shapes that the panels need, so that each filters, rates and groups in the same way.

Every selector takes the dashboard's `job` and `instance`; rates use `$__rate_interval`, which Grafana
makes at least four scrapes long. `where` adds matchers, as PromQL writes them.
"""

from __future__ import annotations

RANGE = "$__rate_interval"

By = tuple[str, ...]


def series(metric: str, where: str = "") -> str:
    """The metric as it is, of the chosen jobs and instances."""
    matchers = 'job=~"$job", instance=~"$instance"'
    return f"{metric}{{{matchers}{', ' if where else ''}{where}}}"


def total(metric: str, by: By = (), where: str = "", op: str = "sum") -> str:
    """A gauge, aggregated."""
    return _aggregated(op, by, series(metric, where))


def rate(metric: str, by: By = (), where: str = "") -> str:
    """Per second, of a counter."""
    return _aggregated("sum", by, f"rate({series(metric, where)}[{RANGE}])")


def increase(metric: str, by: By = (), where: str = "") -> str:
    """Over the interval that one point of a graph stands for."""
    return _aggregated("sum", by, f"increase({series(metric, where)}[{RANGE}])")


def share(part: str, whole: str) -> str:
    """0 where there is a whole and no part of it was seen yet; nothing while the whole is 0."""
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def quantile(q: float, histogram: str, by: By = (), where: str = "") -> str:
    return f"histogram_quantile({q:g}, {rate(histogram + '_bucket', ('le', *by), where)})"


def mean(histogram: str, by: By = (), where: str = "") -> str:
    """Of what was observed in the interval; nothing where nothing was."""
    return f"{rate(histogram + '_sum', by, where)} / ({rate(histogram + '_count', by, where)} > 0)"


def _aggregated(op: str, by: By, inner: str) -> str:
    return f"{op} by ({', '.join(by)}) ({inner})" if by else f"{op}({inner})"
