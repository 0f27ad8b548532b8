"""One answer: tokens of a mailbox as an OpenAI stream or body, with its stages, until its client leaves."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from starlette.types import Message, Receive, Send

from harness.engine.intake import Order
from harness.engine.service import EngineService, Mailbox
from harness.engine.wire import DONE, Envelope, RefusedError, over_limit


class Answer:
    """Takes an order through the engine; `stages_ms` holds its stages once it is finished."""

    def __init__(
        self, order: Order, engine: EngineService, *, chat: bool, request_id: str, arrived: float
    ) -> None:
        self.order, self._engine, self._request_id, self._arrived = order, engine, request_id, arrived
        self.stages_ms: dict[str, float] = {}
        self._envelope = Envelope(
            chat=chat,
            answer_id=("chatcmpl-" if chat else "cmpl-") + request_id,
            model=engine.config.model,
            created=int(time.time()),
        )
        self._chat = chat
        self._mail = Mailbox()

    async def send(self, receive: Receive, send: Send) -> bool:
        """Queue the order and answer it; returns whether the client stayed. Raises RefusedError."""
        self._submit()
        leaving = asyncio.ensure_future(self._watch(receive))
        job = self.order.job
        try:
            while not (self._mail.tokens or self._mail.expired or self._mail.gone):
                await self._mail.news()
            if self._mail.expired:
                raise self._too_late()
            if self.order.call.stream:
                await self._stream(send)
            else:
                await self._whole(send)
            return not self._mail.gone
        finally:
            leaving.cancel()
            self._engine.cancel(job)

    def _submit(self) -> None:
        job, config = self.order.job, self._engine.config
        job.owner = self._mail
        self._pre_ms = (asyncio.get_running_loop().time() - self._arrived) * 1e3
        refused = self._engine.submit(job)
        if refused == "queue_full":
            behaviour = config.on_exceed.get("queue_max", "reject")
            waiting = len(self._engine.scheduler.waiting) + 1
            raise over_limit("queue_max", config.limit("queue_max") or 0, waiting, behaviour)
        if refused == "too_long":
            raise over_limit("max_input_tokens", config.kv.tokens - 1, job.prompt_tokens, "reject")

    def _too_late(self) -> RefusedError:
        config = self._engine.config
        waited_ms = (asyncio.get_running_loop().time() - self.order.job.queued) * 1e3
        behaviour = config.on_exceed.get("queue_wait_ms", "reject")
        return over_limit("queue_wait_ms", config.limit("queue_wait_ms") or 0, round(waited_ms), behaviour)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._mail.gone = True
        self._mail.ring()

    async def _stream(self, send: Send) -> None:
        await send(self._head("text/event-stream; charset=utf-8", [(b"cache-control", b"no-cache")]))
        if self._chat:
            await send(_more(self._envelope.role()))
        mail, order, envelope, sent = self._mail, self.order, self._envelope, 0
        while not mail.gone:
            plain = mail.tokens - mail.finished  # the last token carries the reason
            while sent < plain:
                await send(_more(envelope.token(order.token(sent))))
                sent += 1
            if mail.finished:
                break
            await mail.news()
        if mail.gone:
            return
        self._finish()
        inline = None if order.call.include_usage else self.stages_ms
        await send(_more(envelope.last(order.token(sent), self.finish_reason, inline)))
        if order.call.include_usage:
            await send(_more(envelope.usage(self._usage(), self.stages_ms)))
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _whole(self, send: Send) -> None:
        mail = self._mail
        while not (mail.finished or mail.gone):
            await mail.news()
        if mail.gone:
            return
        self._finish()
        words = (msgspec.json.decode(self.order.token(n), type=str) for n in range(mail.tokens))
        body = self._envelope.whole("".join(words), self.finish_reason, self._usage())
        timing = ", ".join(f"{name[:-3]};dur={ms:.3f}" for name, ms in self.stages_ms.items())
        headers = [(b"server-timing", timing.encode()), (b"content-length", str(len(body)).encode())]
        await send(self._head("application/json", headers))
        await send({"type": "http.response.body", "body": body, "more_body": False})

    @property
    def finish_reason(self) -> str:
        """`length` where the answer was cut by its limit, `stop` where it ended by itself."""
        natural = self._engine.config.answer_tokens
        ended = natural is not None and not self.order.call.ignore_eos
        return "stop" if ended and self.order.job.generated == natural else "length"

    def _finish(self) -> None:
        stages = {"pre_ms": self._pre_ms, **self.order.job.stages_ms}
        self.stages_ms = {name: round(ms, 3) for name, ms in stages.items()}

    def _usage(self) -> dict[str, Any]:
        job = self.order.job
        return {
            "prompt_tokens": job.prompt_tokens,
            "completion_tokens": job.generated,
            "total_tokens": job.prompt_tokens + job.generated,
            "prompt_tokens_details": {"cached_tokens": job.cached_tokens},
        }

    def _head(self, content_type: str, headers: list[tuple[bytes, bytes]]) -> Message:
        own = [
            (b"content-type", content_type.encode()),
            (b"x-request-id", self._request_id.encode("latin-1")),
        ]
        return {"type": "http.response.start", "status": 200, "headers": own + headers}


def _more(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}
