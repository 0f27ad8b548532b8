"""Where requests go: one `Target` a process, made from the profile, the host option and the key."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, quote, urlsplit

from harness.errors import UserError
from harness.profile import Profile, Timeouts

PATHS = {"chat": "/chat/completions", "completions": "/completions"}
_AS_WRITTEN = "%/:?@!$&'()*+,;=[]~"  # only what no request line can carry is escaped
_OURS = ("content-length", "transfer-encoding", "connection", "x-request-id")


@dataclass(frozen=True, slots=True)
class Target:
    """The service under test, ready to be sent to."""

    scheme: Literal["http", "https"]
    host: str  # without brackets
    port: int
    path: str  # of the POST
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)  # the key is among them
    verify_tls: bool
    stream: bool
    endpoint: Literal["chat", "completions"]
    timeouts: Timeouts
    secrets: tuple[str, ...] = field(default=(), repr=False)  # what no record may hold

    def redacted(self, text: str) -> str:
        """Return what a service said without the key and the header values, should it repeat them."""
        for secret in self.secrets:
            text = text.replace(secret, "(hidden)")
        return text


def target_of(profile: Profile, api_key: str | None = None) -> Target:
    """Return the target of a profile; raises UserError for an address or a header that cannot be used."""
    settings = profile.target
    base = address(settings.base_url)
    scheme: Literal["http", "https"] = "https" if base.scheme == "https" else "http"
    host = base.hostname or ""
    port = base.port or (443 if scheme == "https" else 80)
    headers = {
        "host": _authority(host, port, scheme),
        "user-agent": "locust-knee",
        "accept": "text/event-stream" if settings.stream else "application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
    }
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    for name, value in settings.headers.items():
        headers[name.lower()] = value
    path = quote(base.path.rstrip("/"), safe=_AS_WRITTEN) + PATHS[settings.endpoint]
    return Target(
        scheme=scheme,
        host=host,
        port=port,
        path=path + (f"?{quote(base.query, safe=_AS_WRITTEN)}" if base.query else ""),
        headers=tuple(_header(name, value) for name, value in headers.items()),
        verify_tls=settings.verify_tls,
        stream=settings.stream,
        endpoint=settings.endpoint,
        timeouts=settings.timeouts,
        secrets=tuple(value for value in (api_key, *settings.headers.values()) if value and len(value) >= 8),
    )


def address(url: str, key: str = "target.base_url") -> SplitResult:
    """Return the parts of a service's URL; raises UserError naming `key` where it cannot be used."""
    try:
        parts = urlsplit(url)
        name = (parts.hostname or "").encode("idna")  # a ValueError where a part is empty or too long
        usable = parts.scheme in ("http", "https") and bool(name) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(char.isspace() for char in url):
        shown = url.rpartition("@")[2]  # a password may stand before it
        raise UserError(f"cannot use the address {shown!r}", key=key, remedy="write http://HOST:PORT/v1")
    return parts


def _authority(host: str, port: int, scheme: str) -> str:
    try:
        shown = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        shown = host.encode("idna").decode("ascii") if not host.isascii() else host
    return shown if port == (443 if scheme == "https" else 80) else f"{shown}:{port}"


def _header(name: str, value: str) -> tuple[bytes, bytes]:
    key = f"target.headers.{name}"
    if name in _OURS:
        raise UserError("this header is set by the client itself", key=key, remedy="remove it")
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise UserError("this is no name of a header", key=key)
    try:
        encoded = value.encode("latin-1")
    except UnicodeEncodeError:
        raise UserError("its value holds characters no header can carry", key=key) from None
    if any(byte < 32 or byte == 127 for byte in encoded):
        raise UserError("its value holds a line break or control character", key=key)
    return name.encode("ascii"), encoded
