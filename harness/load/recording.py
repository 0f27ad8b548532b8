"""One answer and the body it answered, as a record."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from harness.load.answer import Answer
from harness.load.client import Client
from harness.records import BEFORE_LOAD, Request

if TYPE_CHECKING:
    from harness.payloads.corpus import Body


def record_of(
    answer: Answer,
    body: Body,
    *,
    run: str,
    worker: str,
    user: int,
    seq: int,
    phase: int,
    label: str,
    req_id: str,
    first: bool = False,
    users: int | None = None,
    rate: float | None = None,
    due_ns: int | None = None,
    backoff_ms: float = 0.0,
) -> Request:
    """Return the record of a request; `due_ns` is on the worker's monotonic clock, None in a closed loop."""
    return Request(
        run=run,
        worker=worker,
        user=user,
        seq=seq,
        phase=phase,
        label=label,
        users=users,
        rate=rate,
        kind=body.kind,
        payload=body.payload,
        in_img=body.in_img,
        img_wh=list(body.img_wh),
        img_bytes=body.img_bytes,
        body_bytes=body.body_bytes,
        in_tokens=answer.in_tokens,
        out_tokens=answer.out_tokens,
        token_source=answer.token_source,
        chunks=answer.chunks,
        wall_ns=answer.wall_ns,
        due_ns=due_ns,
        start_ns=answer.start_ns,
        connect_ms=answer.connect_ms,
        sent_ms=answer.sent_ms,
        headers_ms=answer.headers_ms,
        ttft_ms=answer.ttft_ms,
        last_token_ms=answer.last_token_ms,
        total_ms=answer.total_ms,
        queued_ms=(answer.start_ns - due_ns) / 1e6 if due_ns is not None else None,
        itl_p50_ms=answer.itl_p50_ms,
        itl_p95_ms=answer.itl_p95_ms,
        itl_max_ms=answer.itl_max_ms,
        client_lag_ms=answer.client_lag_ms,
        pre_ms=answer.pre_ms,
        queue_ms=answer.queue_ms,
        prefill_ms=answer.prefill_ms,
        decode_ms=answer.decode_ms,
        stage_source=answer.stage_source,
        status=answer.status,
        outcome=answer.outcome,
        error=answer.error,
        finish_reason=answer.finish_reason,
        reused=answer.reused,
        first=first,
        retry_after_s=answer.retry_after_s,
        backoff_ms=backoff_ms,
        req_id=req_id,
    )


def ask_before_load(client: Client, body: Body, asker: str, seq: int, *, first: bool = False) -> Request:
    """Send a request that belongs to no phase and return its record; the record names no run yet.

    Raises what was raised into the greenlet while it waited: there is no run yet that could end in order.
    """
    req_id = uuid.uuid4().hex
    answer = client.send(body.segments, req_id, length=body.length)
    if answer.killed is not None:
        raise answer.killed
    return record_of(
        answer,
        body,
        run="",
        worker=asker,
        user=0,
        seq=seq,
        phase=BEFORE_LOAD,
        label=asker,
        first=first,
        req_id=req_id,
    )
