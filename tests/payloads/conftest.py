"""A small profile of each kind, made from keys."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.profile import Profile
from harness.profile_reader import parse_profile

Make = Callable[..., Profile]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a maker of profiles: the mix or replay, and sections to merge in; paths start at tmp_path."""

    def made(
        *mix: dict[str, Any], replay: dict[str, Any] | None = None, unique: bool = True, **sections: Any
    ) -> Profile:
        traffic: dict[str, Any] = {"unique": unique, "seed": 7}
        traffic |= {"replay": replay} if replay else {"mix": list(mix)}
        target = {"base_url": "http://127.0.0.1:1/v1", "model": "m"} | sections.pop("target", {})
        raw = {"name": "p", "target": target, "traffic": traffic, **sections}
        return parse_profile(yaml.safe_dump(raw), file=tmp_path / "profile.yaml")

    return made
