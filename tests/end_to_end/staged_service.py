"""A service of one place that takes its stages with `harness.stages`; prints `ready URL`.

Preprocessing takes 4 ms, prefill 15 ms, each of 4 tokens 3 ms; whoever comes meanwhile waits.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from harness.stages import StageMiddleware, current

PRE_S, PREFILL_S, TOKEN_S, TOKENS = 0.004, 0.015, 0.003, 4
EVENT = 'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
LAST = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
place = asyncio.Lock()


async def answer(request: Request) -> StreamingResponse:
    await request.body()
    await asyncio.sleep(PRE_S)
    current().ready()
    return StreamingResponse(tokens(), media_type="text/event-stream")


async def tokens() -> AsyncIterator[str]:
    async with place:
        current().started()
        await asyncio.sleep(PREFILL_S)
        current().first_token()
        for _ in range(TOKENS):
            yield EVENT
            await asyncio.sleep(TOKEN_S)
    yield LAST


app = Starlette(
    routes=[Route("/v1/chat/completions", answer, methods=["POST"])],
    middleware=[Middleware(StageMiddleware)],
)

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"ready http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
