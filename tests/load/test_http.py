"""Framing of one answer, cut anywhere, and what its headers mean."""

from __future__ import annotations

import pytest

from harness.load.http import Framing, HTTPParseError, retry_after_s

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Empty:\r\nVia: a\r\nVia: b\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;ext=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
)
LENGTH = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull"


class Taker:
    """Keeps what a framing hands on."""

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.body = b""
        self.framing = Framing(self.on_head)

    def on_head(self, status: int, headers: dict[str, str]) -> object:
        self.heads.append(status)
        return self.on_body

    def on_body(self, piece: bytearray) -> None:
        self.body += piece


def taken(*pieces: bytes) -> Taker:
    taker = Taker()
    for piece in pieces:
        taker.framing.feed(piece)
    return taker


def test_every_cut_gives_the_same_answer() -> None:
    for raw, status, body, keeps in ((CHUNKED, 200, b"abc0123456789", True), (LENGTH, 503, b"full", False)):
        for cut in range(len(raw)):
            taker = taken(raw[:cut], raw[cut:]) if cut else taken(*(bytes([byte]) for byte in raw))
            assert (taker.heads, taker.body) == ([status], body)
            assert taker.framing.complete
            assert bool(taker.framing.should_keep_alive()) is keeps


def test_headers_are_lower_case_joined_and_not_those_of_a_1xx() -> None:
    headers = taken(CHUNKED).framing.headers
    assert headers["via"] == "a, b"
    assert headers["x-empty"] == ""
    assert "link" not in headers


def test_an_answer_is_complete_only_with_its_last_byte() -> None:
    for raw in (CHUNKED, LENGTH):
        assert not taken(raw[:-1]).framing.complete


def test_an_answer_may_end_with_its_connection() -> None:
    taker = taken(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert (taker.body, taker.framing.complete, taker.framing.ends_with_connection) == (b"abc", False, True)
    assert not taken(LENGTH[:-1]).framing.ends_with_connection
    assert not taken(CHUNKED[:-1]).framing.ends_with_connection
    assert not taken(b"HTTP/1.1 200").framing.ends_with_connection


def test_no_body_is_waited_for_where_there_can_be_none() -> None:
    assert taken(b"HTTP/1.1 204 No Content\r\n\r\n").framing.complete


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        LENGTH + b"more",
        LENGTH + LENGTH,
    ],
)
def test_what_is_no_answer_is_refused(raw: bytes) -> None:
    with pytest.raises(HTTPParseError):
        taken(raw)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("1.5", 1.5),
        ("-3", 0.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, now_s=10.0) == seconds
