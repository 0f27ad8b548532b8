"""Where request bodies of runs lie on a host: readable by its user alone, and not for longer than they serve.

The file goes at the end of its run. Whoever has mapped it keeps it, and a process that comes later makes it
again, so that nobody has to ask who else is using it. What a killed run has left goes a day later.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from harness.errors import UserError

KEPT_S = 86_400.0


def spool() -> Path:
    """Return the folder, rid of what is old; raises UserError where it cannot be used."""
    folder = Path(tempfile.gettempdir()) / f"locust-knee-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.lstat().st_uid != os.getuid():
            raise UserError("belongs to another user", file=folder, remedy="set TMPDIR to a folder of yours")
        for file in (*folder.glob("*.corpus"), *folder.glob("*.building")):
            if time.time() - file.stat().st_mtime > KEPT_S:
                file.unlink()
    except FileNotFoundError:  # gone meanwhile by another's hand
        pass
    except OSError as error:
        raise UserError(f"cannot be used: {error.strerror}", file=folder, remedy="set TMPDIR") from None
    return folder
