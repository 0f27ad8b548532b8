"""The requests that meet each limit: one at it, one just over it, and where it is served, one far over it.

A service that makes images smaller, or cuts text, answers 200. Its own token count gives it away: it does not
grow with the input. So does a fact that stands in the part that would be cut: the last words of the prompt.
"""

from __future__ import annotations

import base64
import io
import math
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from PIL import Image

from harness.probe.ask import Reply, Service, ask
from harness.probe.judge import Finding, broken, judged, refusal
from harness.probe.limits_file import Limits

SHORT_ANSWER = 16  # output tokens of requests whose answer does not matter
LONG_ANSWER = 64  # output tokens that let a fact be repeated, or hold a place for a while
STRIP_PX = 56  # height of images that probe the side alone
MAX_SIDE_PX = 16_384
MAX_PARALLEL = 256
GROWN = 1.3  # tokens of twice the input, in relation to those at the limit: more is growth
SLACK = 1.25  # measured times may pass a timeout by so much before it counts as not enforced

Case = Callable[[Service, Limits], Finding]


def probe_all(service: Service, limits: Limits, told: Callable[[str], None]) -> list[Finding]:
    """Probe every limit that the file holds and return a finding for each; `told` is called before each."""
    findings = []
    for key, case in CASES.items():
        section = next(
            s for s in (limits.input_limits, limits.concurrency, limits.timeouts) if hasattr(s, key)
        )
        if getattr(section, key) is not None:
            told(key)
            findings.append(case(service, limits))
    return findings


def picture(width: int, height: int) -> dict[str, Any]:
    """Return a message part with a new picture: its colour is drawn, so that no cache knows it."""
    red, green, blue = secrets.token_bytes(3)
    shade = Image.linear_gradient("L").resize((width, height))
    tint = Image.new("RGB", (width, height), (red, green, blue))
    out = io.BytesIO()
    Image.composite(tint, Image.new("RGB", (width, height), (255, 255, 255)), shade).save(
        out, "JPEG", quality=80
    )
    data = base64.b64encode(out.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}


def words(count: int, fact: str | None = None) -> str:
    """Return a prompt of so many equal words with a new start and, if given, a fact in its last words."""
    tail = f" [[fact:{fact}]] Repeat the fact." if fact else ""
    return f"{secrets.token_hex(4)}" + " the" * count + tail


def _image_side(service: Service, limits: Limits) -> Finding:
    side = limits.input_limits.max_image_side
    assert side is not None
    height = min(STRIP_PX, side)

    def send(width: int) -> Reply:
        return ask(service, [_say("Describe."), picture(min(width, MAX_SIDE_PX), height)], SHORT_ANSWER)

    return _scaled("max_image_side", side, send, side, side + 1, 2 * side)


def _image_pixels(service: Service, limits: Limits) -> Finding:
    pixels, side_limit = limits.input_limits.max_image_pixels, limits.input_limits.max_image_side
    assert pixels is not None
    widest = min(side_limit or MAX_SIDE_PX, MAX_SIDE_PX)
    width = min(2 * math.isqrt(pixels), widest)  # wide, so that there is room to grow in height
    at_height = pixels // width
    if at_height + 1 > widest:
        text = f"cannot be met within max_image_side {widest}: that limit is the tighter one"
        return Finding("max_image_pixels", pixels, "skipped", text)

    def send(height: int) -> Reply:
        return ask(service, [_say("Describe."), picture(width, height)], SHORT_ANSWER)

    return _scaled("max_image_pixels", pixels, send, at_height, at_height + 1, min(2 * at_height, widest))


def _scaled(
    key: str, limit: float, send: Callable[[int], Reply], at_size: int, over_size: int, far_size: int
) -> Finding:
    """Judge an image limit; where it is served over the limit, tokens tell whether it was made smaller."""
    at, over = send(at_size), send(over_size)
    if found := judged(key, limit, at, over):
        return found
    far = send(far_size)
    if not far.good:
        text = f"{over_size} is served, and {far_size} refused with {far.status}: the limit stands higher"
        return Finding(key, limit, "not_enforced", text, at.status, over.status)
    before, after = at.tokens("prompt_tokens"), far.tokens("prompt_tokens")
    if before is not None and after is not None and after < before * GROWN and far_size > 1.5 * at_size:
        text = f"served, but {far_size} px cost {after} tokens and {at_size} px cost {before}: made smaller"
        return Finding(key, limit, "downscaled", text, at.status, over.status)
    return Finding(key, limit, "not_enforced", "served as if there were no limit", at.status, over.status)


def _images(service: Service, limits: Limits) -> Finding:
    count = limits.input_limits.max_images_per_request
    assert count is not None
    key = "max_images_per_request"
    at, over = (
        ask(service, [_say("Describe."), *(picture(112, 112) for _ in range(n))], SHORT_ANSWER)
        for n in (count, count + 1)
    )
    if found := judged(key, count, at, over):
        return found
    before, after = at.tokens("prompt_tokens"), over.tokens("prompt_tokens")
    if before is not None and after is not None and after <= before:
        text = f"served with 200, but {count + 1} images cost no more tokens than {count}: one was dropped"
        return Finding(key, count, "truncated", text, at.status, over.status)
    return Finding(key, count, "not_enforced", "served as if there were no limit", at.status, over.status)


def _input_tokens(service: Service, limits: Limits) -> Finding:
    """Judge the prompt limit: lengths are calibrated by the service's own count of two prompts."""
    limit = limits.input_limits.max_input_tokens
    assert limit is not None
    key = "max_input_tokens"
    fact = secrets.token_hex(6)
    few, many = max(limit // 16, 8), max(limit // 4, 32)
    low, high = (ask(service, words(n, fact), SHORT_ANSWER).tokens("prompt_tokens") for n in (few, many))
    if low is None or high is None or high <= low:
        return Finding(
            key, limit, "skipped", "the service counts no tokens (usage), so lengths cannot be set"
        )
    per_word = (high - low) / (many - few)
    fitting = int((limit - low) / per_word) + few
    length = _length(limits)
    at = ask(service, words(fitting, fact), length)
    actual = at.error.get("actual")
    if isinstance(actual, int | float) and actual > limit:  # a word or two of rounding are taken back
        fitting -= math.ceil((actual - limit) / per_word)
        at = ask(service, words(fitting, fact), length)
    over = ask(service, words(fitting + max(2, limit // 100), fact), length)
    if found := judged(key, limit, at, over):
        return found
    counted = over.tokens("prompt_tokens")
    lost = fact in at.text and fact not in over.text
    if lost or (counted is not None and counted <= limit):
        how = "a fact at its end was not seen" if lost else f"it counts {counted} tokens"
        return Finding(
            key, limit, "truncated", f"a longer prompt is served, but {how}: cut silently", 200, 200
        )
    return Finding(key, limit, "not_enforced", f"served {counted} tokens", at.status, over.status)


def _new_tokens(service: Service, limits: Limits) -> Finding:
    limit = limits.input_limits.max_new_tokens
    assert limit is not None
    key = "max_new_tokens"
    at = ask(service, words(8), limit, ignore_eos=True)
    over = ask(service, words(8), limit + 1, ignore_eos=True)
    if found := judged(key, limit, at, over):
        return found
    made = over.tokens("completion_tokens")
    if made is not None and made <= limit:
        text = f"{limit + 1} tokens were asked for and {made} came with 200: cut silently"
        return Finding(key, limit, "truncated", text, at.status, over.status)
    return Finding(key, limit, "not_enforced", f"served {made} tokens", at.status, over.status)


def _queue(service: Service, limits: Limits) -> Finding:
    """Judge the queue bound: as many at once as places and queue hold are served, the rest refused."""
    cap, bound = limits.concurrency.cap, limits.concurrency.queue_max
    assert bound is not None
    key = "queue_max"
    if cap is None:
        return Finding(key, bound, "skipped", "concurrency.cap is not given, so the queue cannot be filled")
    most = cap + bound + max(4, (cap + bound) // 4)
    if most > MAX_PARALLEL:
        return Finding(key, bound, "skipped", f"{most} requests at once are more than the probe sends")
    replies = _at_once(service, most, limits)
    refused = [r for r in replies if not r.good]
    for reply in refused:
        if found := broken(key, bound, reply, f"with {most} at once"):
            return found
    if not refused:
        return Finding(key, bound, "not_enforced", f"{most} at once were all served", 200, 200)
    served = len(replies) - len(refused)
    if served < cap:
        return Finding(key, bound, "refused_below", f"only {served} of {most} at once were served", 200)
    return refusal(key, bound, None, refused[0])


def _queue_wait(service: Service, limits: Limits) -> Finding:
    """Judge the wait bound: with twice the cap at once, whoever waits longer must be refused."""
    wait, cap = limits.timeouts.queue_wait_ms, limits.concurrency.cap
    assert wait is not None
    key = "queue_wait_ms"
    if cap is None or 2 * cap > MAX_PARALLEL:
        return Finding(key, wait, "skipped", "concurrency.cap is not given or too large to be filled")
    length = _length(limits)
    alone = ask(service, words(8), length, ignore_eos=True)
    replies = _at_once(service, 2 * cap, limits)
    refused = [r for r in replies if not r.good]
    for reply in refused:
        if found := broken(key, wait, reply, "while waiting"):
            return found
    if refused:
        return refusal(key, wait, None, refused[0])
    longest = (max(r.seconds for r in replies) - 2 * alone.seconds) * 1000
    if longest <= wait * SLACK:
        return Finding(key, wait, "not_reached", f"no request waited so long with {2 * cap} at once")
    text = f"a request waited about {longest:.0f} ms and was served all the same"
    return Finding(key, wait, "not_enforced", text, 200, 200)


def _total(service: Service, limits: Limits) -> Finding:
    """Judge the total bound by the longest answer that may be asked for."""
    total = limits.timeouts.total_ms
    assert total is not None
    reply = ask(service, words(8), limits.input_limits.max_new_tokens or 256, ignore_eos=True)
    if found := broken("total_ms", total, reply, "on the longest answer"):
        return found
    if not reply.good:
        return refusal("total_ms", total, None, reply)
    took = reply.seconds * 1000
    if took <= total * SLACK:
        return Finding(
            "total_ms", total, "not_reached", f"the longest answer took {took:.0f} ms", reply.status
        )
    return Finding(
        "total_ms", total, "not_enforced", f"an answer took {took:.0f} ms", reply.status, reply.status
    )


def _at_once(service: Service, count: int, limits: Limits) -> list[Reply]:
    length = _length(limits)
    with ThreadPoolExecutor(count) as pool:
        sent = [pool.submit(ask, service, words(8), length, ignore_eos=True) for _ in range(count)]
        return [one.result() for one in sent]


def _length(limits: Limits) -> int:
    """Return how many output tokens are asked for where an answer matters."""
    return min(LONG_ANSWER, limits.input_limits.max_new_tokens or LONG_ANSWER)


def _say(text: str) -> dict[str, str]:
    return {"type": "text", "text": f"{secrets.token_hex(4)} {text}"}


CASES: dict[str, Case] = {
    "max_image_side": _image_side,
    "max_image_pixels": _image_pixels,
    "max_images_per_request": _images,
    "max_input_tokens": _input_tokens,
    "max_new_tokens": _new_tokens,
    "queue_max": _queue,
    "queue_wait_ms": _queue_wait,
    "total_ms": _total,
}
