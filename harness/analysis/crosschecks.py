"""Three knee finders of the literature beside ours: shown with whether they agree, never the verdict.

Each fails in its own way: the USL (Gunther 1993) assumes a smooth curve, Kneedle (Satopaa et al. 2011)
depends on where the ladder ends, and power (Giessler et al. 1978, Kleinrock 1979) takes the best step even
where none is a knee.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
from kneed import KneeLocator
from scipy.optimize import least_squares

from harness.analysis.stats import Floats
from harness.results import CrossCheck, Load

UNSUITED = CrossCheck(detail="it describes users, not arrivals")


def cross_checks(
    loads: Floats, throughput: Floats, latency: Floats, cap: Load | None, *, open_loop: bool
) -> dict[str, CrossCheck]:
    """Return each finder's cap on the ladder as measured (at least three steps, lowest first, all positive).

    `cap` is ours, or None where there is none to agree with. In a closed loop the mean time of a user's
    request is load over throughput (Little), refusals and waits included.
    """
    known = np.isfinite(loads) & np.isfinite(throughput) & np.isfinite(latency) & (throughput > 0)
    x, y, r = loads[known], throughput[known], latency[known]
    if len(x) < 3:
        return {}
    finders: dict[str, Callable[[], CrossCheck]] = {
        "usl": lambda: _usl(x, y, open_loop=open_loop),
        "kneedle": lambda: _kneedle(x, y),
        "power": lambda: _power(x, y, r if open_loop else x / y),
    }
    found = {}
    for name, finder in finders.items():
        check = finder()
        none_found = float(x[-1])  # a finder without a knee says that the last step still carries
        agrees = None if cap is None or check is UNSUITED else (check.cap or none_found) == cap
        found[name] = CrossCheck(cap=check.cap, detail=check.detail, agrees=agrees)
    return found


def _usl(x: Floats, y: Floats, *, open_loop: bool) -> CrossCheck:
    """X(N) = a N / (1 + s (N - 1) + k N (N - 1)), fitted on the log of X with s and k within bounds."""
    if open_loop:
        return UNSUITED

    def residuals(p: Floats) -> Floats:
        fitted: Floats = p[0] + np.log(x) - np.log1p(p[1] * (x - 1) + p[2] * x * (x - 1)) - np.log(y)
        return fitted

    start = np.array([math.log(y[0] / x[0]), 0.1, 1e-3])
    fit = least_squares(residuals, start, bounds=([-np.inf, 0, 0], [np.inf, 1, 1]))
    s, k = float(fit.x[1]), float(fit.x[2])
    peak = math.sqrt((1 - s) / k) if k > 1e-9 else math.inf
    grid = np.geomspace(x[0], x[-1], 400)
    growth = 1 - grid * (s + k * (2 * grid - 1)) / (1 + s * (grid - 1) + k * grid * (grid - 1))
    half = float(grid[np.argmax(growth < 0.5)]) if (growth < 0.5).any() else math.inf
    detail = f"contention {s:.3f}, coherency {k:.4f}, peak "
    detail += f"at {peak:.1f}" if peak <= 10 * x[-1] else "beyond the ladder"
    detail += f", growth halved at {half:.1f}" if math.isfinite(half) else ", growth never halved"
    return CrossCheck(cap=float(x[x <= half * (1 + 1e-9)][-1]), detail=detail)


def _kneedle(x: Floats, y: Floats) -> CrossCheck:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where it finds none; the answer says so
        found = KneeLocator(x, y, S=1.0, curve="concave", direction="increasing").knee
    if found is None:
        return CrossCheck(detail="no knee in the throughput curve")
    return CrossCheck(cap=float(found), detail="largest bend of the throughput curve, S = 1")


def _power(x: Floats, y: Floats, r: Floats) -> CrossCheck:
    best = int(np.argmax(y / r))
    return CrossCheck(cap=float(x[best]), detail="throughput over mean latency is highest there")
