"""From a request's body to a job: images, tokens, limits.

A right engine refuses what lies beyond a limit and says so. This one can also be told to do wrong
(`on_exceed`), each way being one that real services have: cut the prompt's end without a word, drop images,
shorten the answer, shrink images, fail with a 500, or never answer. So that a probe can find out, the answer
begins with every `[[fact:WORD]]` that the engine still sees in the prompt, and, where the prompt holds
`[[image sizes]]`, with the size of each image as it was processed; usage counts the tokens that were kept.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Hashable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import msgspec

from harness.engine.caches import hash_blocks
from harness.engine.config import EngineConfig, OnExceed
from harness.engine.images import Picture, decode_picture, read_picture
from harness.engine.preprocess import Preprocessor, Size, encoder_tokens, visual_tokens
from harness.engine.scheduler import Job
from harness.engine.wire import Call, Part, RefusedError, over_limit

_EAST_ASIAN = "\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef"
_TOKENS = re.compile(f"[{_EAST_ASIAN}]|[^{_EAST_ASIAN}]{{1,4}}")
_FACT = re.compile(r"\[\[fact:([^\]\s]{1,100})\]\]")
_SIZES = "[[image sizes]]"
_FILLER = [
    msgspec.json.encode(word)
    for word in re.findall(" [a-z]+", " a quick brown fox runs on through high grass")
]


@dataclass(slots=True)
class Order:
    """A request that was taken: its job, and what its answer says."""

    call: Call
    job: Job
    said: list[str]  # tokens that begin the answer
    sizes: list[Size] = field(default_factory=list)  # of the images as sent
    image_bytes: int = 0
    ready: float = 0.0  # when its preprocessing is to end, by the loop's clock

    def token(self, number: int) -> bytes:
        """Return the answer's n-th token as JSON."""
        if number < len(self.said):
            return msgspec.json.encode(self.said[number])
        return _FILLER[number % len(_FILLER)]


def parse_call(body: bytes, config: EngineConfig) -> Call:
    """Return a body's request. Raises RefusedError: 400 for what is no request, 404 for another model."""
    try:
        call = msgspec.json.decode(body, type=Call)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(400, "invalid_request", str(error)) from None
    if call.model != config.model:
        raise RefusedError(404, "model_not_found", f"the model `{call.model}` does not exist", param="model")
    if not call.parts:
        raise RefusedError(400, "invalid_request", "no messages and no prompt")
    return call


async def take_order(
    call: Call, config: EngineConfig, preprocessor: Preprocessor, threads: Executor
) -> Order:
    """Read, check and preprocess a request; returns when its real work is done, perhaps before `ready`."""
    loop = asyncio.get_running_loop()
    arrived = loop.time()
    out_tokens = answer_length(call, config)
    parts = _drop_images(call.parts, config)
    urls = [_url(part) for part in parts if part.type == "image_url"]
    pictures = await loop.run_in_executor(threads, _read_all, urls) if urls else []
    sizes = [processed_size(picture.size, config) for picture in pictures]
    tokens = [visual_tokens(size, config.patch_px) for size in sizes]
    texts = _cut_texts([part.text or "" for part in parts if part.type == "text"], sum(tokens), config)
    new = [n for n, picture in enumerate(pictures) if preprocessor.lookup(picture.digest) is None]
    ready = preprocessor.ready_at(arrived, [(pictures[n].digest, sizes[n]) for n in new])
    if new:
        todo = [(pictures[n], sizes[n]) for n in new]
        await loop.run_in_executor(threads, _decode_all, todo)
    blocks: tuple[int, ...] = ()
    if config.caches.prefix:
        blocks = hash_blocks(_stream(parts, texts, pictures, tokens), config.kv.block_tokens)
    job = Job(
        prompt_tokens=sum(map(len, texts)) + sum(tokens),
        out_tokens=out_tokens,
        blocks=blocks,
        vision_tokens=sum(encoder_tokens(sizes[n], config) for n in new),
    )
    return Order(
        call=call,
        job=job,
        said=_said(texts, sizes),
        sizes=[picture.size for picture in pictures],
        image_bytes=sum(len(picture.data) for picture in pictures),
        ready=ready,
    )


def check_limit(config: EngineConfig, name: str, actual: float) -> OnExceed | None:
    """Return None within a limit, how it gives way beyond one that does; else raise RefusedError."""
    limit = config.limit(name)
    if limit is None or actual <= limit:
        return None
    behaviour = config.on_exceed.get(name, "reject")
    if behaviour in ("truncate", "downscale"):
        return behaviour
    raise over_limit(name, limit, actual, behaviour)


def answer_length(call: Call, config: EngineConfig) -> int:
    """Return how many tokens the answer will have. Raises RefusedError."""
    asked = call.max_completion_tokens or call.max_tokens
    wanted = config.default_max_tokens if asked is None else asked
    if wanted < 1:
        raise RefusedError(400, "invalid_request", "max_tokens must be at least 1", param="max_tokens")
    if check_limit(config, "max_new_tokens", wanted):
        wanted = int(config.limit("max_new_tokens") or wanted)
    if config.answer_tokens is not None and not call.ignore_eos:
        wanted = min(wanted, config.answer_tokens)
    return wanted


def tokens_of(text: str) -> list[str]:
    """Return a text's tokens: one per East Asian character, one per four characters of anything else."""
    return _TOKENS.findall(text)


def processed_size(size: Size, config: EngineConfig) -> Size:
    """Return the size at which an image is looked at: its own, unless the engine shrinks it in silence."""
    width, height = size
    if check_limit(config, "max_image_side", max(size)):
        scale = (config.limit("max_image_side") or 0) / max(size)
        width, height = max(1, int(width * scale)), max(1, int(height * scale))
    if check_limit(config, "max_image_pixels", width * height):
        scale = ((config.limit("max_image_pixels") or 0) / (width * height)) ** 0.5
        width, height = max(1, int(width * scale)), max(1, int(height * scale))
    return width, height


def _drop_images(parts: list[Part], config: EngineConfig) -> list[Part]:
    count = sum(part.type == "image_url" for part in parts)
    if not check_limit(config, "max_images_per_request", count):
        return parts
    left = itertools.count(1)
    most = config.limit("max_images_per_request") or 0
    return [part for part in parts if part.type != "image_url" or next(left) <= most]


def _cut_texts(texts: list[str], image_tokens: int, config: EngineConfig) -> list[list[str]]:
    """Split texts into tokens; beyond the limit the end is cut where the engine truncates."""
    split = [tokens_of(text) for text in texts]
    if check_limit(config, "max_input_tokens", sum(map(len, split)) + image_tokens):
        room = max(int(config.limit("max_input_tokens") or 0) - image_tokens, 0)
        for number, tokens in enumerate(split):
            split[number] = tokens[:room]
            room -= len(split[number])
    return split


def _stream(
    parts: list[Part], texts: list[list[str]], pictures: Sequence[Picture], counts: list[int]
) -> list[Hashable]:
    """Return the prompt as one list of tokens; an image's are its digest, as often as it has tokens."""
    words, images = iter(texts), iter(zip(pictures, counts, strict=True))
    stream: list[Hashable] = []
    for part in parts:
        if part.type == "text":
            stream += next(words)
        elif part.type == "image_url":
            picture, count = next(images)
            stream += [picture.digest] * count
    return stream


def _said(texts: list[list[str]], sizes: list[Size]) -> list[str]:
    seen = "\n".join("".join(tokens) for tokens in texts)
    said = [f"{fact} " for fact in _FACT.findall(seen)]
    if _SIZES in seen:
        said += [f"{width}x{height} " for width, height in sizes]
    return said


def _url(part: Part) -> str:
    if part.image_url is None:
        raise RefusedError(400, "invalid_request", "a part of type image_url needs image_url.url")
    return part.image_url.url


def _read_all(urls: list[str]) -> list[Picture]:
    return [read_picture(url) for url in urls]


def _decode_all(todo: list[tuple[Picture, Size]]) -> None:
    for picture, size in todo:
        decode_picture(picture, size)
