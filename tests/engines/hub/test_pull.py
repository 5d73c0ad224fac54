"""Pulls from a hub over real sockets: what is brought, and what is kept when a connection breaks."""

from __future__ import annotations

import threading

import pytest

from llm_runtime.engines.hub.pull import Hub, pull
from llm_runtime.engines.hub.ref import HubRef
from llm_runtime.engines.hub.store import HubStore
from tests.engines.hub.fake_hub import COMMIT, REPO, FakeHub, serving
from tests.engines.hub.pulling import (
    GGUF,
    GGUF_REF,
    NEEDED,
    QUICK,
    REF,
    WEIGHTS,
    bring,
    contents,
    failure,
    parts,
    ranges,
)

# What is brought


def test_a_model_comes_with_what_serving_needs_and_nothing_else(hub: FakeHub, store: HubStore) -> None:
    pulled = bring(hub, store)
    assert contents(pulled.path) == NEEDED
    assert pulled.path.name == "model"
    assert pulled.commit == COMMIT
    assert pulled.unchecked == ()
    assert store.find(REF) == pulled.path
    assert parts(store) == []


def test_all_files_are_asked_for_by_commit(hub: FakeHub, store: HubStore) -> None:
    """So that a push in the middle of a pull does not mix two versions."""
    bring(hub, store)
    (listing,) = [request for request in hub.requests if request.path.startswith("/api/")]
    assert listing.path == f"/api/models/{REPO}/revision/main"
    resolved = [r for r in hub.requests if r.server == "hub" and r is not listing]
    assert resolved
    assert all(request.path.startswith(f"/{REPO}/resolve/{COMMIT}/") for request in resolved)


def test_one_file_is_brought_alone(hub: FakeHub, store: HubStore) -> None:
    pulled = bring(hub, store, GGUF_REF)
    assert pulled.path.read_bytes() == GGUF
    assert contents(pulled.path.parent) == {"model-Q4_1.gguf": GGUF}
    assert store.find(GGUF_REF) == pulled.path
    assert store.find(REF) is None, "one file is not a model that can be served from a folder"


def test_what_is_here_is_not_fetched_again(hub: FakeHub, store: HubStore) -> None:
    first = bring(hub, store)
    hub.requests.clear()
    assert bring(hub, store) == first
    assert [request.path for request in hub.requests] == [f"/api/models/{REPO}/revision/main"]


def test_a_file_that_was_spoilt_since_is_fetched_again(hub: FakeHub, store: HubStore) -> None:
    path = bring(hub, store).path / "model.safetensors"
    path.write_bytes(b"short")
    hub.requests.clear()
    bring(hub, store)
    assert path.read_bytes() == WEIGHTS
    assert len(hub.gets("model.safetensors")) == 1
    assert hub.gets("config.json") == []


def test_a_later_commit_is_another_folder(hub: FakeHub, store: HubStore) -> None:
    before = bring(hub, store)
    hub.commit = "f" * 40
    hub.files["config.json"] = b'{"model_type": "other"}'
    after = bring(hub, store)
    assert before.path != after.path
    assert (before.path / "config.json").read_bytes() == NEEDED["config.json"]
    assert store.find(REF) == after.path
    assert store.find(HubRef(REPO, COMMIT[:12])) == before.path


def test_files_are_fetched_at_once(hub: FakeHub, store: HubStore) -> None:
    hub.gate = threading.Barrier(len(NEEDED))  # passes only when all are under way
    bring(hub, store, workers=len(NEEDED))
    assert hub.most_at_once == len(NEEDED)


def test_one_worker_fetches_one_file_after_another(hub: FakeHub, store: HubStore) -> None:
    bring(hub, store, workers=1)
    assert hub.most_at_once == 1


def test_progress_grows_to_the_total(hub: FakeHub, store: HubStore) -> None:
    told: list[tuple[int, int]] = []
    pull(REF, store, Hub(hub.hub_url), lambda *numbers: told.append(numbers))
    total = sum(map(len, NEEDED.values()))
    assert told == sorted(told)
    assert {all_of_it for _, all_of_it in told} == {total}
    assert told[-1] == (total, total)


def test_parts_of_a_split_model_come_together(store: HubStore) -> None:
    files = {f"q4/big-{number:05}-of-00003.gguf": GGUF + bytes([number]) for number in (1, 2, 3)}
    with serving(FakeHub({**files, "README.md": b""}, frozenset(files))) as hub:
        pulled = bring(hub, store, HubRef(REPO, file="q4/big-00001-of-00003.gguf"))
        assert contents(pulled.path.parents[1]) == files
        assert pulled.path.name == "big-00001-of-00003.gguf"


def test_old_weights_come_where_there_is_nothing_better(store: HubStore) -> None:
    with serving(FakeHub({"config.json": b"{}", "pytorch_model.bin": WEIGHTS, "flax.msgpack": b""})) as hub:
        assert set(contents(bring(hub, store).path)) == {"config.json", "pytorch_model.bin"}


def test_shards_come_with_their_index(store: HubStore) -> None:
    files = {
        "config.json": b"{}",
        "model.safetensors.index.json": b"{}",
        "model-00001-of-00002.safetensors": WEIGHTS,
        "model-00002-of-00002.safetensors": WEIGHTS + b"2",
    }
    with serving(FakeHub({**files, "consolidated.safetensors": WEIGHTS})) as hub:
        assert contents(bring(hub, store).path) == files


# Connections that break


def test_a_cut_file_is_continued(hub: FakeHub, store: HubStore) -> None:
    hub.cuts["model.safetensors"] = [700_000, 500_000]
    pulled = bring(hub, store)
    assert (pulled.path / "model.safetensors").read_bytes() == WEIGHTS
    assert ranges(hub, "model.safetensors") == [None, "bytes=700000-", "bytes=1200000-"]


def test_a_server_without_ranges_sends_all_of_it_again(hub: FakeHub, store: HubStore) -> None:
    hub.with_ranges = False
    hub.cuts["model.safetensors"] = [700_000]
    assert (bring(hub, store).path / "model.safetensors").read_bytes() == WEIGHTS
    assert ranges(hub, "model.safetensors") == [None, "bytes=700000-"]


def test_tries_that_bring_something_do_not_count(hub: FakeHub, store: HubStore) -> None:
    hub.cuts["model.safetensors"] = [100_000] * 10  # far more than QUICK allows in a row
    assert (bring(hub, store).path / "model.safetensors").read_bytes() == WEIGHTS


def test_what_was_fetched_is_kept_for_the_next_run(hub: FakeHub, store: HubStore) -> None:
    hub.cuts["model.safetensors"] = [1_000_000, *[0] * QUICK.num]
    message = failure(hub, store)
    assert message.startswith(
        "model.safetensors could not be fetched: the connection was cut after 1,000,000"
    )
    assert parts(store) == [1_000_000]
    hub.requests.clear()
    assert contents(bring(hub, store).path) == NEEDED
    assert ranges(hub, "model.safetensors") == ["bytes=1000000-"]
    assert parts(store) == []


def test_what_was_fetched_of_one_file_outlives_the_pull_of_another(hub: FakeHub, store: HubStore) -> None:
    hub.cuts["model.safetensors"] = [1_000_000, *[0] * QUICK.num]
    failure(hub, store)
    bring(hub, store, GGUF_REF)
    assert parts(store) == [1_000_000]


def test_parts_of_content_that_is_gone_are_removed(hub: FakeHub, store: HubStore) -> None:
    hub.cuts["model.safetensors"] = [1_000_000, *[0] * QUICK.num]
    failure(hub, store)
    hub.commit, hub.files["model.safetensors"] = "f" * 40, b"new" + WEIGHTS
    assert (bring(hub, store).path / "model.safetensors").read_bytes() == b"new" + WEIGHTS
    assert ranges(hub, "model.safetensors")[-1] is None
    assert parts(store) == []


def test_a_spoilt_part_of_an_earlier_run_does_not_spoil_this_one(hub: FakeHub, store: HubStore) -> None:
    hub.cuts["model.safetensors"] = [1_000_000, *[0] * QUICK.num]
    failure(hub, store)
    (part,) = store.parts_of(REPO).glob("*.part")
    part.write_bytes(b"\xff" * 1_000_000)
    assert contents(bring(hub, store).path) == NEEDED


@pytest.mark.parametrize("size", [len(WEIGHTS), len(WEIGHTS) + 5])
def test_a_part_that_is_too_long_is_dropped(hub: FakeHub, store: HubStore, size: int) -> None:
    hub.cuts["model.safetensors"] = [1_000_000, *[0] * QUICK.num]
    failure(hub, store)
    (part,) = store.parts_of(REPO).glob("*.part")
    part.write_bytes(b"\xff" * size)
    assert contents(bring(hub, store).path) == NEEDED


def test_nobody_listens(hub: FakeHub, store: HubStore) -> None:
    message = failure(hub, store, endpoint="http://127.0.0.1:1")
    assert message == f"the listing of hf:{REPO} could not be fetched: Connection refused"
