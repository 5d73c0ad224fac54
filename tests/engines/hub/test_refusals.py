"""Pulls that meet wrong content, refusals and other pulls, over real sockets; who gets the token."""

from __future__ import annotations

import json
import threading
import time

import pytest

from llm_runtime.engines.hub.pull import Pulled
from llm_runtime.engines.hub.ref import HubRef
from llm_runtime.engines.hub.store import HubStore
from tests.engines.hub.fake_hub import COMMIT, REPO, Answer, FakeHub, serving
from tests.engines.hub.pulling import (
    GGUF,
    NEEDED,
    QUICK,
    REF,
    WEIGHTS,
    bring,
    contents,
    failure,
    parts,
)

# Content that is wrong


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_wrong_content_is_refused_and_removed(hub: FakeHub, store: HubStore, name: str) -> None:
    right = hub.files[name]
    hub.sent[name] = bytes([right[0] ^ 1]) + right[1:]
    message = failure(hub, store, workers=1)
    assert message.startswith(f"{name} is not what the hub says it is: its checksum is ")
    assert not list(store.folder.rglob(name))
    assert parts(store) == []
    del hub.sent[name]
    assert contents(bring(hub, store).path) == NEEDED


def test_too_much_content_is_refused(hub: FakeHub, store: HubStore) -> None:
    hub.sent["model.safetensors"] = WEIGHTS + b"more"
    assert "sent more than the file has" in failure(hub, store)


def test_files_without_a_published_checksum_are_told(hub: FakeHub, store: HubStore) -> None:
    hub.with_checksums = False
    pulled = bring(hub, store)
    assert contents(pulled.path) == NEEDED
    assert set(pulled.unchecked) == set(NEEDED)


def test_a_cut_is_noticed_without_any_published_size(hub: FakeHub, store: HubStore) -> None:
    hub.with_checksums = False
    hub.cuts["model.safetensors"] = [5]
    assert contents(bring(hub, store).path) == NEEDED


# Refusals


@pytest.mark.parametrize("where", ["/api/", "resolve", "/model.safetensors"])
@pytest.mark.parametrize(
    "answer",
    [Answer(429, {"retry-after": "0"}), Answer(503), Answer(500), Answer(408)],
    ids=lambda a: str(a.status),
)
def test_passing_trouble_is_tried_again(hub: FakeHub, store: HubStore, where: str, answer: Answer) -> None:
    hub.answers[where] = [answer, answer]
    assert contents(bring(hub, store).path) == NEEDED


def test_a_wait_that_was_asked_for_is_kept(hub: FakeHub, store: HubStore) -> None:
    """Its own wait would be 2 ms."""
    hub.answers["/api/"] = [Answer(429, {"retry-after": "1"})]
    started = time.monotonic()
    bring(hub, store)
    assert time.monotonic() - started >= 1.0


def test_too_long_a_wait_is_not_kept(hub: FakeHub, store: HubStore) -> None:
    hub.answers["/api/"] = [Answer(429, {"retry-after": "3600"})]
    assert "wants to be left alone for 3600 s" in failure(hub, store)


def test_trouble_that_does_not_pass_ends_it(hub: FakeHub, store: HubStore) -> None:
    hub.answers["/api/"] = [Answer(503)] * (QUICK.num + 1)
    assert failure(hub, store) == f"the listing of hf:{REPO} could not be fetched: the server answered 503"
    assert len(hub.requests) == QUICK.num + 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(401), "set HF_TOKEN"),
        (Answer(403), "ask for access"),
        (Answer(404, {"x-error-code": "RepoNotFound"}), f"the hub has no model hf:{REPO}"),
        (Answer(404, {"x-error-code": "RevisionNotFound"}), "has no revision 'main'"),
        (Answer(418), "with status 418"),
    ],
    ids=lambda value: str(getattr(value, "status", "")),
)
def test_refusals_are_told_at_once(hub: FakeHub, store: HubStore, answer: Answer, words: str) -> None:
    hub.answers["/api/"] = [answer]
    assert words in failure(hub, store)
    assert len(hub.requests) == 1


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"sha": "../../etc", "siblings": []}', b'{"siblings": []}']
)
def test_what_is_no_listing_is_refused(hub: FakeHub, store: HubStore, body: bytes) -> None:
    hub.answers["/api/"] = [Answer(200, body=body)]
    assert "address of a hub" in failure(hub, store)


def test_a_file_that_is_not_there_is_told_with_those_that_are(hub: FakeHub, store: HubStore) -> None:
    message = failure(hub, store, HubRef(REPO, file="model-Q8_0.gguf"))
    assert message == f"hf:{REPO} has no file 'model-Q8_0.gguf'; it has model-Q4_1.gguf"


def test_a_repository_of_gguf_files_needs_a_name(store: HubStore) -> None:
    with serving(FakeHub({"a.gguf": GGUF, "b.gguf": GGUF, "config.json": b"{}"})) as hub:
        assert f"as in hf:{REPO}:a.gguf, b.gguf" in failure(hub, store)


def test_names_that_lead_out_of_the_folder_are_not_taken(store: HubStore) -> None:
    with serving(FakeHub({**NEEDED, "../../model.safetensors": b"out"})) as hub:
        assert contents(bring(hub, store).path) == NEEDED
        assert not list(store.folder.parent.glob("*.safetensors"))


# The token


def test_the_token_goes_to_the_endpoint_only(hub: FakeHub, store: HubStore) -> None:
    hub.token = "hf_secret"
    assert contents(bring(hub, store, token="hf_secret").path) == NEEDED
    to_hub = [request for request in hub.requests if request.server == "hub"]
    to_storage = [request for request in hub.requests if request.server == "storage"]
    assert to_storage
    assert all(request.headers["authorization"] == "Bearer hf_secret" for request in to_hub)
    assert not any("authorization" in request.headers for request in to_storage)


def test_the_token_follows_within_the_endpoint(hub: FakeHub, store: HubStore) -> None:
    """A renamed repository is redirected to its new name."""
    hub.token = "hf_secret"
    hub.answers["/api/models/old/name"] = [
        Answer(307, {"location": f"/api/models/{REPO}/revision/main?blobs=true"})
    ]
    hub.answers["/old/name/resolve"] = [
        Answer(307, {"location": f"/{REPO}/resolve/{COMMIT}/model-Q4_1.gguf"})
    ]
    pulled = bring(hub, store, HubRef("old/name", file="model-Q4_1.gguf"), token="hf_secret")
    assert pulled.path.read_bytes() == GGUF


def test_without_a_token_a_closed_model_is_refused(hub: FakeHub, store: HubStore) -> None:
    hub.token = "hf_secret"
    assert "set HF_TOKEN" in failure(hub, store)


@pytest.mark.parametrize(
    "endpoint", ["hub.example", "ftp://hub.example", "https://u:p@hub.example", "https://"]
)
def test_an_endpoint_that_is_no_address_is_refused(hub: FakeHub, store: HubStore, endpoint: str) -> None:
    assert "HF_ENDPOINT" in failure(hub, store, endpoint=endpoint)


# Several at once, and notes


def test_two_pulls_at_once_fetch_once(hub: FakeHub, store: HubStore) -> None:
    results: list[Pulled] = []
    threads = [threading.Thread(target=lambda: results.append(bring(hub, store))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1
    assert len(hub.gets("model.safetensors")) == 1


def test_a_folder_without_a_note_is_not_given_out(hub: FakeHub, store: HubStore) -> None:
    path = bring(hub, store).path
    note = path.with_suffix(".json")
    assert json.loads(note.read_text())["complete"] is True
    for spoilt in ("", "{}", "[]", '{"repo": 7}'):
        note.write_text(spoilt)
        assert store.find(REF) is None
    hub.requests.clear()
    assert bring(hub, store).path == path
    assert hub.gets("model.safetensors") == [], "what is whole is only read again, not fetched"
