"""Kubernetes manifests as they reach the cluster, without kubectl: a kustomization's resources, and its
patches merged into them as Kubernetes merges strategically, as far as ours need it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tests.deploy.places import read_all_yaml, read_yaml

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
}


def built(folder: Path) -> list[dict[str, Any]]:
    """What `kubectl kustomize` would print, in the order of the files."""
    kustomization = read_yaml(folder / "kustomization.yaml")
    documents: list[dict[str, Any]] = []
    for resource in kustomization["resources"]:
        path = folder / resource
        documents += built(path) if path.is_dir() else read_all_yaml(path)
    for patch in kustomization.get("patches", ()):
        change = read_yaml(folder / patch["path"])
        (place,) = (number for number, one in enumerate(documents) if _identity(one) == _identity(change))
        documents[place] = merged(documents[place], change)
    return documents


def merged(base: Any, change: Any, under: str = "") -> Any:
    """Neither argument is changed. None removes."""
    if isinstance(base, dict) and isinstance(change, dict):
        result = copy.copy(base)
        for name, value in change.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = merged(base[name], value, name) if name in base else value
        return result
    key = MERGE_KEYS.get(under)
    if isinstance(base, list) and isinstance(change, list) and key is not None:
        ours = {item[key]: item for item in base}
        named = {item[key] for item in change}
        first = [merged(ours[item[key]], item) if item[key] in ours else item for item in change]
        return first + [item for item in base if item[key] not in named]
    return change


def _identity(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]
