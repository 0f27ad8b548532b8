"""GET over one kept connection, with a limit on the whole exchange.

Everything observed over HTTP (dcgm-exporter, engine, simulated GPU, another sidecar) comes through here. A
service that hangs, drips or answers an error costs one exchange, never the loop that asked.
"""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

from harness.errors import UserError

MAX_BYTES = 64 * 2**20


class FetchError(Exception):
    """A GET that gave no usable answer, in a few words."""


class Getter:
    """A kept connection to one base URL (scheme, host, port); paths are absolute. For one thread."""

    def __init__(self, url: str, *, timeout_s: float = 2.0, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise UserError(f"not an address: {url}", remedy="write it as http://host:port")
        self.url, self.path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._timeout_s, self._headers = timeout_s, {"Connection": "keep-alive", **(headers or {})}
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str) -> bytes:
        """Return the body of a 200 answer; raises FetchError with the reason otherwise."""
        kept = self._connection is not None
        try:
            return self._exchange(path)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not kept or isinstance(error, TimeoutError):
                raise FetchError(_words(error)) from None
        try:  # a kept connection may have been closed by the other side meanwhile
            return self._exchange(path)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise FetchError(_words(error)) from None

    def close(self) -> None:
        """Close the connection; the next GET opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, path: str) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=self._timeout_s)
        self._connection.request("GET", path, headers=self._headers)
        response = self._connection.getresponse()
        body = bytearray()
        while piece := response.read1(65536):
            body += piece
            if time.monotonic() > deadline:
                raise TimeoutError
            if len(body) > MAX_BYTES:
                raise http.client.HTTPException("answer too large")
        if response.length:
            raise http.client.IncompleteRead(bytes(body), response.length)
        response.close()  # read1 leaves it open, and the connection then takes no further request
        if response.will_close:
            self.close()
        if response.status != 200:
            raise FetchError(f"HTTP {response.status}")
        return bytes(body)


def _words(error: Exception) -> str:
    """Say what went wrong without an address in it (the caller names it)."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
