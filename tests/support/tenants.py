"""Tenants as settings, and what replies say of their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tests.support.http import Reply

ANN = "sk-ANNSECRET000001"
BOB = "sk-BOBSECRET000002"


def tenants(**declared: Mapping[str, Any]) -> dict[str, str]:
    """The setting, of tenants by name."""
    items = [{"name": name, **fields} for name, fields in declared.items()]
    return {"admission.tenants": orjson.dumps(items).decode()}


def ann(**fields: Any) -> dict[str, Any]:
    return {"keys": [ANN], **fields}


def bob(**fields: Any) -> dict[str, Any]:
    return {"keys": [BOB], **fields}


def bearer(key: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **headers}


def told(reply: Reply) -> dict[str, str]:
    """What it says of limits, by the end of the header's name."""
    prefix = "x-ratelimit-"
    return {
        name.removeprefix(prefix): value for name, value in reply.headers.items() if name.startswith(prefix)
    }


def seconds(span: str) -> float:
    """What `x-ratelimit-reset-*` says."""
    if span.endswith("ms"):
        return int(span.removesuffix("ms")) / 1000
    total, number = 0, ""
    for character in span:
        if character.isdecimal():
            number += character
        else:
            total += int(number) * {"h": 3600, "m": 60, "s": 1}[character]
            number = ""
    assert not number
    return float(total)
