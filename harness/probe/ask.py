"""One request of the probe and its answer, by the standard library: bounded in time, never retried."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from harness.load.answer import error_text

MAX_ANSWER_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Service:
    """Where the probe asks."""

    base_url: str  # ends before /chat/completions
    model: str
    timeout_s: float
    headers: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back; `status` None: no answer, `failure` says why."""

    status: int | None
    seconds: float
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)  # names in lower case
    failure: str | None = None

    @property
    def good(self) -> bool:
        """Whether the request was served."""
        return self.status == 200 and "choices" in self.body and "error" not in self.body

    @property
    def hung(self) -> bool:
        """Whether no answer came in time."""
        return self.failure == "timeout"

    @property
    def error(self) -> dict[str, Any]:
        """The structured error, empty where there is none."""
        found = self.body.get("error", self.body if self.status != 200 else {})
        return found if isinstance(found, dict) else {"message": str(found)}

    @property
    def text(self) -> str:
        """The answer's text, empty where there is none."""
        try:
            return str(self.body["choices"][0]["message"]["content"] or "")
        except (KeyError, IndexError, TypeError):
            return ""

    def tokens(self, name: str) -> int | None:
        """Return `prompt_tokens` or `completion_tokens` as the service counted them."""
        usage = self.body.get("usage")
        value = usage.get(name) if isinstance(usage, dict) else None
        return value if isinstance(value, int) else None


def ask(service: Service, content: Any, max_tokens: int, **extra: Any) -> Reply:
    """Send one chat request that is not streamed and return its reply; never raises for a failed one."""
    url = urlsplit(service.base_url)
    host, timeout = url.hostname or "", service.timeout_s
    connection = (
        http.client.HTTPSConnection(host, url.port, timeout=timeout, context=ssl.create_default_context())
        if url.scheme == "https"
        else http.client.HTTPConnection(host, url.port, timeout=timeout)
    )
    message = {"role": "user", "content": content}
    body = {
        "model": service.model,
        "messages": [message],
        "max_tokens": max_tokens,
        "temperature": 0,
        **extra,
    }
    headers = {"content-type": "application/json", **service.headers}
    start = time.monotonic()
    try:
        path = url.path.rstrip("/") + "/chat/completions"
        connection.request("POST", path, json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        raw = answer.read(MAX_ANSWER_BYTES)
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, time.monotonic() - start, _parsed(raw), names)
    except TimeoutError:
        return Reply(None, time.monotonic() - start, failure="timeout")
    except (OSError, http.client.HTTPException) as error:
        return Reply(None, time.monotonic() - start, failure=error_text(f"{type(error).__name__}: {error}"))
    finally:
        connection.close()


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, UnicodeDecodeError):
        return {}
    return value if isinstance(value, dict) else {}
