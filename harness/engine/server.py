"""The simulated engine as a server: OpenAI's endpoints, health, metrics, and a simulated GPU at `/sim/gpu`.

Headers of a stream leave with its first token, so that a request refused in the queue still gets its own
status. The log has one JSON line per request: its stages, its images, its tokens, and what became of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from harness.engine.answer import Answer
from harness.engine.config import EngineConfig
from harness.engine.images import load_readers
from harness.engine.intake import check_limit, parse_call, take_order
from harness.engine.metrics import MetricsPage
from harness.engine.preprocess import Size
from harness.engine.service import EngineService
from harness.engine.wire import RefusedError


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request in the engine's log; stages are missing where it was not answered."""

    req_id: str
    wall_ns: int
    status: int  # 499: the client left
    pre_ms: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    img_wh: list[Size] = []
    img_bytes: int = 0
    in_tokens: int | None = None
    out_tokens: int | None = None
    preemptions: int = 0
    error_code: str | None = None


class EngineApp:
    """Routes of one engine; `app` is what an ASGI server runs."""

    def __init__(
        self, config: EngineConfig, *, log: IO[bytes] | None = None, api_key: str | None = None
    ) -> None:
        self.config, self._log, self._api_key = config, log, api_key
        self._threads = ThreadPoolExecutor(config.preprocess.workers, thread_name_prefix="decode")
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", _Endpoint(self, chat=True), methods=["POST"]),
                Route("/v1/completions", _Endpoint(self, chat=False), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/sim/gpu", self._sim_gpu),
            ],
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        load_readers()
        self._engine = EngineService(self.config)
        self._page = MetricsPage(self._engine.scheduler, self._engine.preprocessor)
        stepping = asyncio.create_task(self._engine.run())
        try:
            yield
        finally:
            stepping.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _models(self, request: Request) -> Response:
        try:
            self._authorize(request)
        except RefusedError as refused:
            return _refusal(refused)
        model = {"id": self.config.model, "object": "model", "created": 0, "owned_by": "simulated"}
        return _json({"object": "list", "data": [model]})

    async def _health(self, _request: Request) -> Response:
        return Response()

    async def _metrics(self, _request: Request) -> Response:
        return Response(self._page.text(), media_type="text/plain; version=0.0.4")

    async def _sim_gpu(self, _request: Request) -> Response:
        return _json(self._engine.read_gpu())

    async def answer(self, request: Request, send: Send, *, chat: bool) -> None:
        """Answer one request, whatever it is, and log it."""
        request_id = request.headers.get("x-request-id") or uuid.uuid4().hex
        wall_ns, status, error_code, answer = time.time_ns(), 200, None, None
        try:
            self._authorize(request)
            answer = await self._accept(request, request_id, chat=chat)
            if not await answer.send(request.receive, send):
                status, error_code = 499, "client_left"
        except ClientDisconnect:
            status, error_code = 499, "client_left"
        except RefusedError as refused:
            status, error_code = refused.status, refused.error_code
            await self._refuse(refused, request, send, request_id)
        finally:
            self._write(request_id, wall_ns, status, error_code, answer)

    async def _accept(self, request: Request, request_id: str, *, chat: bool) -> Answer:
        body = await self._read(request)
        arrived = asyncio.get_running_loop().time()
        call = parse_call(body, self.config)
        order = await take_order(call, self.config, self._engine.preprocessor, self._threads)
        early_s = order.ready - asyncio.get_running_loop().time()
        if early_s > 5e-4:  # a timer is no finer than that
            await asyncio.sleep(early_s)
        return Answer(order, self._engine, chat=chat, request_id=request_id, arrived=arrived)

    async def _read(self, request: Request) -> bytes:
        """Read the whole body, also of a request to be refused: closing early would lose the refusal."""
        limit = self.config.limit("max_body_bytes")
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if limit is None or size <= limit:
                chunks.append(chunk)
        check_limit(self.config, "max_body_bytes", size)
        return b"".join(chunks)

    def _authorize(self, request: Request) -> None:
        given = request.headers.get("authorization", "")
        if self._api_key and not hmac.compare_digest(given.encode(), f"Bearer {self._api_key}".encode()):
            raise RefusedError(401, "invalid_api_key", "missing or wrong API key")

    async def _refuse(self, refused: RefusedError, request: Request, send: Send, request_id: str) -> None:
        if refused.behaviour == "hang":
            while (await request.receive())["type"] != "http.disconnect":
                pass
            return
        response = _refusal(refused)
        if refused.behaviour == "error500":
            response = PlainTextResponse("Internal Server Error", status_code=500)
        response.headers["x-request-id"] = request_id
        await response(request.scope, request.receive, send)

    def _write(
        self, request_id: str, wall_ns: int, status: int, error_code: str | None, answer: Answer | None
    ) -> None:
        if self._log is None:
            return
        line = LogLine(req_id=request_id, wall_ns=wall_ns, status=status, error_code=error_code)
        if answer is not None:
            order = answer.order
            line = msgspec.structs.replace(
                line,
                img_wh=order.sizes,
                img_bytes=order.image_bytes,
                in_tokens=order.job.prompt_tokens,
                out_tokens=order.job.generated,
                preemptions=order.job.preemptions,
                **answer.stages_ms,
            )
        self._log.write(msgspec.json.encode(line) + b"\n")
        self._log.flush()


class _Endpoint:
    """An ASGI app per endpoint: it sends its own messages, a token at a time, with no task group between."""

    def __init__(self, engine: EngineApp, *, chat: bool) -> None:
        self._engine, self._chat = engine, chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._engine.answer(Request(scope, receive), send, chat=self._chat)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _refusal(refused: RefusedError) -> Response:
    return Response(
        msgspec.json.encode(refused.body), refused.status, refused.headers, media_type="application/json"
    )
