"""What an expression asks for: its selectors, the functions around them, the labels it groups by."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import promql_parser

RATES = frozenset({"rate", "irate", "increase"})
SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Selector:
    """name: None where only matchers choose. range: of a matrix. around: the innermost call around it."""

    name: str | None
    matchers: tuple[tuple[str, str, str], ...]
    range: timedelta | None
    around: str | None

    @property
    def names(self) -> list[str]:
        """The metrics it can mean: one, or those that `__name__=~"a|b"` lists."""
        if self.name is not None:
            return [self.name]
        return [name for label, _, value in self.matchers if label == "__name__" for name in value.split("|")]

    @property
    def labels(self) -> set[str]:
        return {label for label, _, _ in self.matchers} - {"__name__"}


def with_variables(expr: str, values: Mapping[str, str]) -> str:
    """As Grafana sends it: `$name` and `${name}` replaced."""
    for name, value in values.items():
        expr = re.sub(rf"\$(?:{re.escape(name)}\b|{{{re.escape(name)}}})", lambda _: value, expr)  # noqa: B023
    return expr


def parse(expr: str) -> Any:
    """Raises ValueError for what is no PromQL."""
    return promql_parser.parse(expr)


def selectors(expr: str) -> list[Selector]:
    return list(_selectors(parse(expr), None))


def groupings(expr: str) -> set[str]:
    """Every label that some aggregation keeps."""
    return {label for node in _nodes(parse(expr)) for label in _kept(node)}


def result_labels(expr: str) -> set[str] | None:
    """The labels of the result's series, where aggregations decide; None where all labels stay."""
    return _result(parse(expr))


def _result(node: Any) -> set[str] | None:
    match type(node).__name__:
        case "AggregateExpr":
            return set(_kept(node))
        case "Call":
            inner = [child for child in node.args if type(child).__name__ not in _LITERALS]
            found = _result(inner[0]) if inner else set()
            if found is not None and node.func.name == "histogram_quantile":
                found -= {"le"}
            return found
        case "ParenExpr" | "UnaryExpr":
            return _result(node.expr)
        case "BinaryExpr":
            sides = [_result(side) for side in (node.lhs, node.rhs) if type(side).__name__ not in _LITERALS]
            return sides[0] if sides else set()
        case name if name in _LITERALS:
            return set()
    return None


_LITERALS = ("NumberLiteral", "StringLiteral")


def _kept(node: Any) -> list[str]:
    if type(node).__name__ != "AggregateExpr" or node.modifier is None:
        return []
    return list(node.modifier.labels)


def _children(node: Any) -> Iterator[Any]:
    match type(node).__name__:
        case "Call":
            yield from node.args
        case "BinaryExpr":
            yield node.lhs
            yield node.rhs
        case "AggregateExpr" | "ParenExpr" | "UnaryExpr" | "SubqueryExpr":
            yield node.expr
        case "MatrixSelector":
            yield node.vector_selector


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _selectors(node: Any, around: str | None, span: timedelta | None = None) -> Iterator[Selector]:
    kind = type(node).__name__
    if kind == "VectorSelector":
        matchers = tuple((one.name, str(one.op), one.value) for one in node.matchers.matchers)
        yield Selector(node.name, matchers, span, around)
    if kind == "Call":
        around = node.func.name
    if kind == "MatrixSelector":
        span = node.range
    for child in _children(node):
        yield from _selectors(child, around, span)
