"""What of a profile's address reaches the wire."""

from __future__ import annotations

import pytest

from harness.errors import UserError
from harness.load.target import target_of
from harness.profile import PayloadSpec, Profile, Target, Traffic


def profile(base_url: str) -> Profile:
    return Profile(name="p", target=Target(base_url=base_url), traffic=Traffic(mix=(PayloadSpec(kind="a"),)))


@pytest.mark.parametrize(
    ("base_url", "path"),
    [
        ("http://127.0.0.1/v1/", "/v1/chat/completions"),
        ("http://127.0.0.1/a%2Fb?key=1&x=%20", "/a%2Fb/chat/completions?key=1&x=%20"),
        ("http://127.0.0.1/\u00fc", "/%C3%BC/chat/completions"),
    ],
)
def test_a_path_is_sent_as_it_is_written_but_for_what_no_request_line_can_carry(
    base_url: str, path: str
) -> None:
    assert target_of(profile(base_url)).path == path


@pytest.mark.parametrize("host", ["a..b", "\u00fc..b", "\u00fc" * 70, "a b"])
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(UserError, match=r"target\.base_url: cannot use the address"):
        target_of(profile(f"http://{host}/v1"))
