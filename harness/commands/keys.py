"""Secrets, which are read from the environment by the name of their variable and never written down."""

from __future__ import annotations

import os

from harness.errors import UserError


def read_key(name: str | None, key: str) -> str | None:
    """Return what the variable `name` holds, None where no name is given; `key` is what names it.

    Raises UserError where the variable is not set.
    """
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise UserError(f"the variable {name} is not set", key=key, remedy=f"export {name}=...")
    return value
