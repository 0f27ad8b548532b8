"""What goes over the wire: OpenAI's requests as far as the engine reads them, its errors, and its events."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.engine.config import OnExceed


class ImageUrl(msgspec.Struct, frozen=True):
    """Where an image is: a data URL."""

    url: str


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content."""

    type: str
    text: str | None = None
    image_url: ImageUrl | None = None


class Message(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str | list[Part] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside its text."""

    include_usage: bool = False


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request to either endpoint; keys it does not know are ignored, as engines do."""

    model: str
    messages: list[Message] = []
    prompt: str | list[str] = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False

    @property
    def parts(self) -> list[Part]:
        """The whole prompt in order: texts and images."""
        texts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        found = [Part("text", text) for text in texts if text]
        for message in self.messages:
            content = message.content or ""
            found += [Part("text", content)] if isinstance(content, str) else content
        return found

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


# Status and error_code of each limit.
_REFUSALS: dict[str, tuple[int, str]] = {
    "max_body_bytes": (413, "body_bytes_exceeded"),
    "max_image_side": (413, "image_side_exceeded"),
    "max_image_pixels": (413, "image_pixels_exceeded"),
    "max_images_per_request": (400, "image_count_exceeded"),
    "max_input_tokens": (400, "input_tokens_exceeded"),
    "max_new_tokens": (400, "new_tokens_exceeded"),
    "queue_max": (503, "queue_full"),
    "queue_wait_ms": (504, "queue_wait_exceeded"),
}
RETRY_AFTER_S = 1


class RefusedError(Exception):
    """A request that gets no answer: its status, and the body that says why."""

    def __init__(
        self, status: int, error_code: str, message: str, *, behaviour: OnExceed = "reject", **details: Any
    ) -> None:
        super().__init__(message)
        self.status, self.error_code, self.behaviour = status, error_code, behaviour
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {
            "error": {
                "message": message,
                "type": kind,
                "code": status,
                "error_code": error_code,
                **details,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """Headers beside the body."""
        return {"retry-after": str(RETRY_AFTER_S)} if self.status == 503 else {}


def over_limit(name: str, limit: float, actual: float, behaviour: OnExceed) -> RefusedError:
    """Return the refusal of a request beyond a limit, with `limit` and `actual` in its body."""
    status, error_code = _REFUSALS[name]
    message = f"{name} is {limit:g}, got {actual:g}"
    return RefusedError(
        status, error_code, message, behaviour=behaviour, param=name, limit=limit, actual=actual
    )


class Envelope:
    """Builds the events and the body of one answer; what does not change is encoded once."""

    def __init__(self, *, chat: bool, answer_id: str, model: str, created: int) -> None:
        self._chat = chat
        self._head = {
            "id": answer_id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": model,
        }
        opening = msgspec.json.encode(self._head)[:-1] + b',"choices":[{"index":0,'
        self._before = b"data: " + opening + (b'"delta":{"content":' if chat else b'"text":')
        self._after = (b"}" if chat else b"") + b',"logprobs":null,"finish_reason":'

    def role(self) -> bytes:
        """Return the first event of a chat, which carries no text."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._event({"choices": [choice]})

    def token(self, text: bytes) -> bytes:
        """Return the event of one token; `text` is JSON already."""
        return self._before + text + self._after + b"null}]}\n\n"

    def last(self, text: bytes, finish_reason: str, timings: dict[str, float] | None) -> bytes:
        """Return the event of the last token, with the stages where no usage event follows."""
        reason = msgspec.json.encode(finish_reason)
        tail = b"" if timings is None else b',"timings":' + msgspec.json.encode(timings)
        return self._before + text + self._after + reason + b"}]" + tail + b"}\n\n"

    def usage(self, usage: dict[str, Any], timings: dict[str, float]) -> bytes:
        """Return the event after the last token."""
        return self._event({"choices": [], "usage": usage, "timings": timings})

    def whole(self, text: str, finish_reason: str, usage: dict[str, Any]) -> bytes:
        """Return the body of an answer that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        head = self._head | ({"object": "chat.completion"} if self._chat else {})
        return msgspec.json.encode(head | {"choices": [choice], "usage": usage})

    def _event(self, rest: dict[str, Any]) -> bytes:
        return b"data: " + msgspec.json.encode(self._head | rest) + b"\n\n"


DONE = b"data: [DONE]\n\n"
