"""GETs that end whatever the other side does."""

import time

import pytest

from harness.errors import UserError
from harness.observe.fetch import FetchError, Getter


def get(service, answer, timeout_s=0.3):
    service.answers = {"/x": answer}
    getter = Getter(service.url, timeout_s=timeout_s)
    try:
        return getter.get("/x")
    finally:
        getter.close()


def drip(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(100):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.02)


def cut(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx")
    handler.close_connection = True


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (500, "HTTP 500"),
        (lambda handler: time.sleep(1.0), "no answer in time"),
        (drip, "no answer in time"),
        (cut, "IncompleteRead"),
        (lambda handler: handler.wfile.write(b"SSH-2.0\r\n"), "SSH-2.0"),
    ],
)
def test_failures_become_reasons_in_time(service, answer, reason):
    began = time.monotonic()
    with pytest.raises(FetchError, match=reason):
        get(service, answer)
    assert time.monotonic() - began < 1.5


def test_one_connection_serves_many_and_a_closed_one_is_opened_again(service):
    ports = []

    def answer(handler):
        ports.append(handler.client_address[1])
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        handler.close_connection = len(ports) == 2  # closed after the answer, without a word

    service.answers = {"/x": answer}
    getter = Getter(service.url, timeout_s=2)
    assert [getter.get("/x") for _ in range(3)] == [b"ok"] * 3
    getter.close()
    assert ports[0] == ports[1] != ports[2]


def test_nothing_listens(free_port):
    with pytest.raises(FetchError, match="connection refused"):
        Getter(f"http://127.0.0.1:{free_port()}").get("/x")


@pytest.mark.parametrize("url", ["", "ftp://host", "http://", "http://host:port"])
def test_an_address_that_is_none_is_the_users_mistake(url):
    with pytest.raises(UserError, match="not an address"):
        Getter(url)
