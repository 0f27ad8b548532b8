"""Where the files that ship beside the package lie: locustfiles and profiles."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UserError

_PACKAGE = Path(__file__).parent
_ROOTS = (_PACKAGE / "_bundled", _PACKAGE.parent)  # in a wheel; in a checkout


def locustfile(experiment: str) -> Path:
    """Return the path of an experiment's locustfile."""
    return _find(f"locustfiles/{experiment}.py")


def profile(name_or_path: str) -> Path:
    """Return the path of a profile: a file, or the bare name of one that ships with the package."""
    path = Path(name_or_path)
    if path.exists() or path.suffix or len(path.parts) > 1:
        return path
    return _find(f"profiles/{name_or_path}.yaml")


def _find(relative: str) -> Path:
    for root in _ROOTS:
        if (root / relative).is_file():
            return root / relative
    have = ", ".join(sorted(p.stem for root in _ROOTS for p in (root / relative).parent.glob("[a-z]*")))
    raise UserError(
        f"no {relative.partition('/')[0].rstrip('s')} `{Path(relative).stem}`", remedy=f"one of: {have}"
    )
