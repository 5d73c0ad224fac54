"""API keys: whether a caller may speak, and which tenant it is.

Only hashes of keys are kept. A key is named, in errors, logs and metrics, by its tenant: the declared
one's name, else `key-` and the first eight hexadecimal digits of its SHA-256. That tells keys apart and is
useless to call with.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Final

from llm_runtime.core.errors import ConfigError, Unauthorized

ANONYMOUS: Final = "anonymous"
HASH_PREFIX: Final = "sha256:"
# No key is longer; hashing a header of any length would let strangers spend our time.
MAX_KEY_BYTES: Final = 1024
NAME_BYTES: Final = 4

_TENANT: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_HASH: Final = re.compile(r"[0-9a-fA-F]{64}")
_BEARER: Final = re.compile(rb"bearer[ \t]+([!-~]+)[ \t]*", re.IGNORECASE)
_KEY: Final = re.compile(rb"[!-~]+")
_USUAL: Final = b"Bearer "
_KEY_CHARACTERS: Final = bytes(range(ord("!"), ord("~") + 1))
_sha256: Final = hashlib.sha256
_compare_digest: Final = hmac.compare_digest


class _Known:
    __slots__ = ("digest", "tenant")

    def __init__(self, digest: bytes, tenant: str) -> None:
        self.digest: Final = digest
        self.tenant: Final = tenant


class Caller:
    """Who called last over one connection. That connection keeps it, as it keeps the headers it came with;
    the same header again then needs no hash. Nobody can ask one connection for what another was told."""

    __slots__ = ("authorization", "tenant")

    def __init__(self, authorization: bytes, tenant: str) -> None:
        self.authorization: Final = authorization
        self.tenant: Final = tenant

    def is_again(self, authorization: bytes | None) -> bool:
        """Takes the same time wherever the two differ."""
        return authorization is not None and _compare_digest(self.authorization, authorization)


class ApiKeys:
    """The accepted keys, each given as it is or as `sha256:` and 64 hexadecimal digits; none: off.

    keys: of undeclared tenants, each of which is one by itself. declared: keys by tenant. setting: what
    errors call the place of `keys`. Raises ConfigError for a key that no header could carry or that is
    given twice for different tenants. Read-only after construction.
    """

    __slots__ = ("_known",)

    def __init__(
        self,
        keys: Iterable[str] = (),
        declared: Mapping[str, Iterable[str]] | None = None,
        *,
        setting: str = "server.api_keys",
    ) -> None:
        self._known: dict[bytes, _Known] = {}
        for position, key in enumerate(keys, start=1):
            where = f"{setting}: key number {position}"
            self._add(_digest(key, where), None, where)
        for tenant, its_keys in (declared or {}).items():
            for position, key in enumerate(its_keys, start=1):
                where = f"admission.tenants: key number {position} of {tenant}"
                self._add(_digest(key, where), tenant, where)

    def _add(self, digest: bytes, tenant: str | None, where: str) -> None:
        known = _Known(digest, tenant or _tenant(digest))
        other = self._known.setdefault(digest[:NAME_BYTES], known)
        if other.digest != digest:
            raise ConfigError(
                f"{where} would share its tenant name ({_tenant(digest)}) with another key; replace one of "
                "the two"
            )
        if other.tenant != known.tenant:
            raise ConfigError(f"{where} is also a key of {other.tenant}; a key can have one tenant only")

    @property
    def enabled(self) -> bool:
        return bool(self._known)

    @property
    def tenants(self) -> tuple[str, ...]:
        """Every tenant there can be while keys are on."""
        return tuple(dict.fromkeys(known.tenant for known in self._known.values()))

    def identify(
        self,
        authorization: bytes | None,
        *,
        x_api_key: bytes | None = None,
        x_tenant_id: bytes | None = None,
    ) -> str:
        """The caller's tenant, from the values of three headers (None where absent).

        Keys on: by `Authorization: Bearer`, or by `x-api-key` as clients of the Messages API send it
        where there is no Authorization; raises Unauthorized. Keys off: `x-tenant-id` where it is well
        formed, else "anonymous".
        """
        if not self._known:
            if x_tenant_id is None or _TENANT.fullmatch(x_tenant_id) is None:
                return ANONYMOUS
            return x_tenant_id.decode("ascii")
        digest = _sha256(_presented(authorization, x_api_key)).digest()
        # The look-up goes by the part of the hash that is public anyway, as the tenant's name; the
        # comparison that decides takes the same time wherever the hashes differ.
        known = self._known.get(digest[:NAME_BYTES])
        if known is None or not _compare_digest(known.digest, digest):
            raise Unauthorized("The API key is not valid.")
        return known.tenant

    def caller(self, authorization: bytes | None, tenant: str) -> Caller | None:
        """Whom to know again by that header, which `identify` took; None where it decided nothing."""
        return Caller(authorization, tenant) if authorization is not None and self._known else None


def _presented(authorization: bytes | None, x_api_key: bytes | None) -> bytes:
    if authorization is not None:
        key = authorization[len(_USUAL) :]
        if not authorization.startswith(_USUAL) or not key or key.translate(None, _KEY_CHARACTERS):
            match = _BEARER.fullmatch(authorization)
            if match is None:
                raise Unauthorized("The Authorization header must be 'Bearer' and an API key.")
            key = match[1]
    elif x_api_key is not None:
        key = x_api_key
    else:
        raise Unauthorized("An API key is required: send 'Authorization: Bearer' and the key.")
    if len(key) > MAX_KEY_BYTES:
        raise Unauthorized("The API key is not valid.")
    return key


def _digest(key: str, where: str) -> bytes:
    """The hash of a configured key. Errors name the key by its place, never by its text."""
    if key.startswith(HASH_PREFIX):
        digits = key.removeprefix(HASH_PREFIX)
        if _HASH.fullmatch(digits) is None:
            raise ConfigError(f"{where} starts with {HASH_PREFIX} but 64 hexadecimal digits do not follow")
        return bytes.fromhex(digits)
    raw = key.encode("utf-8", "surrogateescape")
    if len(raw) > MAX_KEY_BYTES or _KEY.fullmatch(raw) is None:
        raise ConfigError(
            f"{where} is empty, longer than {MAX_KEY_BYTES} bytes or has a "
            "character that no Authorization header can carry"
        )
    return hashlib.sha256(raw).digest()


def _tenant(digest: bytes) -> str:
    return f"key-{digest[:NAME_BYTES].hex()}"
