"""API keys: who is let in, as whom, and that no key is ever told."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.admission.auth import ApiKeys
from llm_runtime.core.errors import ConfigError, Unauthorized

SECRET = "sk-CLIENTSECRET-0123456789"
HASH = hashlib.sha256(SECRET.encode()).hexdigest()
TENANT = f"key-{HASH[:8]}"


@pytest.mark.parametrize("configured", [SECRET, f"sha256:{HASH}", f"sha256:{HASH.upper()}"])
@pytest.mark.parametrize("header", ["Bearer {}", "bearer {}", "BEARER   {}  ", "Bearer\t{}"])
def test_a_configured_key_names_its_tenant(configured: str, header: str) -> None:
    keys = ApiKeys([configured])
    assert keys.enabled
    assert keys.identify(header.format(SECRET).encode()) == TENANT
    assert keys.tenants == (TENANT,)


def test_several_keys_are_several_tenants_and_the_same_key_twice_is_one() -> None:
    keys = ApiKeys(["a-key", "b-key", "a-key", "sha256:" + hashlib.sha256(b"b-key").hexdigest()])
    assert len(keys.tenants) == 2
    assert keys.identify(b"Bearer a-key") != keys.identify(b"Bearer b-key")


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer sk-WRONGSECRET",
        b"Bearer " + SECRET.encode()[:-1],
        b"Bearer " + SECRET.encode() + b"x",
        b"Bearer " + SECRET.encode() + b" extra",
        b"Bearer " + SECRET.encode() + b"\x00",
        b"Basic " + SECRET.encode(),
        SECRET.encode(),
        b"Bearer sha256:" + HASH.encode(),
        b"Bearer \xff\xfe",
        b"Bearer " + b"x" * 100_000,
        b"Bearer " + SECRET.encode() + b"x" * 2000,
    ],
)
def test_everything_else_is_unauthorized_and_not_repeated(header: bytes | None) -> None:
    keys = ApiKeys([SECRET])
    with pytest.raises(Unauthorized) as caught:
        keys.identify(header, x_tenant_id=b"acme")
    assert caught.value.reason == "invalid_api_key"
    for secret in ("SECRET", HASH[:8], "xxxx"):
        assert secret not in repr(caught.value)


@given(st.binary(max_size=200))
def test_no_header_but_the_key_is_let_in(header: bytes) -> None:
    with pytest.raises(Unauthorized):
        ApiKeys([SECRET]).identify(header)


def test_a_key_that_shares_only_the_tenant_name_is_not_let_in() -> None:
    """The look-up goes by the first four bytes of the hash; the whole hash decides."""
    digest = hashlib.sha256(b"guess").hexdigest()
    keys = ApiKeys([f"sha256:{digest[:8]}{'0' * 56}", f"sha256:{'0' * 64}"])
    with pytest.raises(Unauthorized):
        keys.identify(b"Bearer guess")


def test_a_key_of_any_length_is_not_even_hashed() -> None:
    endless = b"x" * 2000
    keys = ApiKeys([f"sha256:{hashlib.sha256(endless).hexdigest()}"])
    for headers in ({"authorization": b"Bearer " + endless}, {"authorization": None, "x_api_key": endless}):
        with pytest.raises(Unauthorized):
            keys.identify(**headers)


def test_the_messages_header_is_read_only_where_there_is_no_authorization() -> None:
    keys = ApiKeys([SECRET])
    assert keys.identify(None, x_api_key=SECRET.encode()) == TENANT
    with pytest.raises(Unauthorized):
        keys.identify(b"Bearer wrong", x_api_key=SECRET.encode())
    with pytest.raises(Unauthorized):
        keys.identify(None, x_api_key=b"x" * 5000)


def test_without_keys_the_tenant_header_counts_where_it_is_well_formed() -> None:
    keys = ApiKeys()
    assert not keys.enabled
    assert keys.tenants == ()
    assert keys.identify(None) == "anonymous"
    assert keys.identify(b"Bearer whatever") == "anonymous"
    assert keys.identify(None, x_tenant_id=b"acme.prod_1-x") == "acme.prod_1-x"
    for bad in (b"", b"a b", b"x" * 65, b"\xff", b"a\n", b"a\r\nb", "é".encode(), b'a"b'):
        assert keys.identify(None, x_tenant_id=bad) == "anonymous"


def test_with_keys_the_tenant_header_counts_for_nothing() -> None:
    assert ApiKeys([SECRET]).identify(b"Bearer " + SECRET.encode(), x_tenant_id=b"acme") == TENANT


@pytest.mark.parametrize(
    "bad", ["", "with space", "tab\t", "nl\n", "é", "x" * 1025, "sha256:", "sha256:12ab"]
)
def test_a_key_that_cannot_work_is_refused_at_start_without_being_shown(bad: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ApiKeys(["good", bad])
    assert "key number 2" in caught.value.message
    assert not bad.strip() or bad not in caught.value.message or bad == "sha256:"


def test_two_keys_with_one_tenant_name_are_refused() -> None:
    first, second = "ab" * 32, "ab" * 31 + "ff"
    with pytest.raises(ConfigError, match="key number 2"):
        ApiKeys([f"sha256:{first}", f"sha256:{second}"])


def test_the_object_shows_no_key() -> None:
    assert SECRET not in repr(ApiKeys([SECRET]))


@given(
    st.one_of(
        st.binary(max_size=40),
        st.tuples(
            st.sampled_from([b"Bearer ", b"bearer ", b"Bearer  ", b"Bearer\t", b"Bearer", b"Basic "]),
            st.one_of(st.just(SECRET.encode()), st.binary(max_size=12)),
            st.sampled_from([b"", b" ", b"\t ", b"\n", b"x"]),
        ).map(b"".join),
    )
)
def test_the_quick_look_at_a_header_finds_what_its_grammar_says(header: bytes) -> None:
    match = re.fullmatch(rb"bearer[ \t]+([!-~]+)[ \t]*", header, re.IGNORECASE)
    keys = ApiKeys([SECRET])
    if match is not None and match[1] == SECRET.encode():
        assert keys.identify(header) == TENANT
        return
    with pytest.raises(Unauthorized) as caught:
        keys.identify(header)
    assert ("must be 'Bearer'" in caught.value.message) is (match is None)


def test_a_caller_is_known_again_by_the_same_header_only() -> None:
    keys = ApiKeys([SECRET])
    header = b"Bearer " + SECRET.encode()
    caller = keys.caller(header, TENANT)
    assert caller is not None
    assert caller.tenant == TENANT
    assert caller.is_again(header)
    assert not any(
        caller.is_again(other) for other in (None, b"", header[:-1], header + b" ", header.lower())
    )
    assert SECRET not in repr(caller)


def test_who_was_not_asked_for_a_key_is_nobody_to_know_again() -> None:
    assert ApiKeys().caller(b"Bearer x", "anonymous") is None
    assert ApiKeys([SECRET]).caller(None, TENANT) is None
