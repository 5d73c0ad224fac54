"""Pulls from a hub over real sockets: what is brought, what is kept after failures, what is refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.hub.pull import Hub, Pulled, pull
from llm_runtime.engines.hub.ref import HubRef
from llm_runtime.engines.hub.store import HubStore
from llm_runtime.engines.hub.transfer import Retries
from tests.engines.hub.fake_hub import COMMIT, REPO, Answer, FakeHub, serving

WEIGHTS = bytes(range(256)) * 8192  # 2 MiB: several reads
GGUF = b"GGUF" + WEIGHTS
NEEDED = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
}
NOT_NEEDED = {
    "README.md": b"# Model",
    "pytorch_model.bin": WEIGHTS,
    "onnx/model.onnx": b"onnx",
    "training_args.bin": b"pickled",
    "original/consolidated.safetensors": WEIGHTS,
    "model-Q4_1.gguf": GGUF,
    "modeling_llama.py": b"print('code of somebody else')",
}
LARGE = frozenset({"model.safetensors", "pytorch_model.bin", "model-Q4_1.gguf"})
REF = HubRef(REPO)
GGUF_REF = HubRef(REPO, file="model-Q4_1.gguf")
QUICK = Retries(num=3, first_wait_s=0.001, longest_wait_s=0.002)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({**NEEDED, **NOT_NEEDED}, LARGE)) as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> HubStore:
    return HubStore(tmp_path / "hf")


def bring(hub: FakeHub, store: HubStore, ref: HubRef = REF, **changes: object) -> Pulled:
    settings = replace(Hub(hub.hub_url, retries=QUICK), **changes)  # type: ignore[arg-type]
    return pull(ref, store, settings)


def failure(hub: FakeHub, store: HubStore, ref: HubRef = REF, **changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        bring(hub, store, ref, **changes)
    assert store.find(ref) is None
    return caught.value.message


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def parts(store: HubStore) -> list[int]:
    return sorted(path.stat().st_size for path in store.parts_of(REPO).glob("*.part"))


def ranges(hub: FakeHub, name: str) -> list[str | None]:
    return [request.headers.get("range") for request in hub.gets(name)]


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
