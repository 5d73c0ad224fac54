from __future__ import annotations

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.openai.names import MAX_MODELS, configured_names, listed_names


@pytest.mark.parametrize(
    ("model_name", "models", "names"),
    [
        (None, (), {}),
        ("m", (), {"m": "m"}),
        (None, ("a", "b=org/b"), {"a": "a", "b": "org/b"}),
        ("b", ("a", "b = org/b"), {"b": "org/b"}),
    ],
)
def test_configured(model_name: str | None, models: tuple[str, ...], names: dict[str, str]) -> None:
    assert configured_names(model_name, models) == names


@pytest.mark.parametrize(
    ("model_name", "models"), [("c", ("a", "b=d")), (None, ("=x",)), (None, ("x=",)), (None, ("a", "a=b"))]
)
def test_contradictions(model_name: str | None, models: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        configured_names(model_name, models)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"object":"list","data":[{"id":"a"},{"id":"b"},{"id":"a"}]}', ["a", "b"]),
        (b'{"data":[]}', []),
        (b'{"data":[{"id":""},{"id":7},{"name":"x"},3,{"id":"a\\nb"},{"id":"ok"}]}', ["ok"]),
        (b"<html>", None),
        (b'{"models":[]}', None),
        (b"[]", None),
        (b"", None),
    ],
)
def test_listed(body: bytes, names: list[str] | None) -> None:
    assert listed_names(body) == names


def test_a_flood_of_names_is_cut() -> None:
    body = b'{"data":[%s]}' % b",".join(b'{"id":"m%d"}' % index for index in range(MAX_MODELS + 5))
    names = listed_names(body)
    assert names is not None
    assert len(names) == MAX_MODELS
