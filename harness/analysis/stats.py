"""Plain statistics on arrays: quantiles and their intervals, shares, ratios, resampling.

Requests of a run are not independent: a slow second slows all users of it. So resampling draws blocks of
neighbours in completion order (circular block bootstrap, Politis & Romano 1992), and a block spans at least
one round of the users. Beyond `RESAMPLED` values a replicate draws that many and its deviation is scaled by
the square root of the ratio (m out of n): the error that is left there is far below the noise between
steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from harness.results import Quantiles

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

RESAMPLED = 2000
BLOCKS = 20  # at least so many blocks fit into a sample
Z95 = 1.959964
LEAST_SHIFT = 3.0


def quantiles(ms: Floats) -> Quantiles:
    """Return exact percentiles, mean and maximum (linear interpolation, NaN left out).

    All are None where nothing is known.
    """
    known = ms[~np.isnan(ms)]
    if not len(known):
        return Quantiles()
    p50, p95, p99 = (float(q) for q in np.percentile(known, (50, 95, 99)))
    return Quantiles(
        p50_ms=p50, p95_ms=p95, p99_ms=p99, mean_ms=float(known.mean()), max_ms=float(known.max())
    )


@lru_cache(maxsize=256)
def _harrell_davis_weights(n: int, q: float) -> tuple[int, Floats]:
    """Return the first order statistic that carries weight, and the weights from there on."""
    a, b = (n + 1) * q, (n + 1) * (1 - q)
    spread = 9 * math.sqrt(q * (1 - q) / (n + 2)) + 2 / n
    low, high = max(0, math.floor(n * (q - spread))), min(n, math.ceil(n * (q + spread)))
    edges = np.arange(low, high + 1) / n
    weights = np.diff(special.betainc(a, b, edges))
    return low, weights / weights.sum()


def harrell_davis(x: Floats, q: float) -> Floats:
    """Return the Harrell-Davis (1982) estimate of quantile `q` along the last axis.

    A mean of order statistics under Beta weights: smooth in the data, so that replicates of a small sample
    do not jump between a few of its values.
    """
    n = x.shape[-1]
    low, weights = _harrell_davis_weights(n, q)
    tail = x if low == 0 else np.partition(x, low, axis=-1)[..., low:]
    result: Floats = np.sort(tail, axis=-1)[..., : len(weights)] @ weights
    return result


def wilson(k: int, n: int) -> tuple[float, float]:
    """Return the 95 % Wilson (1927) score interval of a share `k` of `n`; (0, 1) where n is 0."""
    if n <= 0:
        return 0.0, 1.0
    share, zz = k / n, Z95 * Z95
    centre = (share + zz / (2 * n)) / (1 + zz / n)
    half = Z95 * math.sqrt(share * (1 - share) / n + zz / (4 * n * n)) / (1 + zz / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def p95_interval(ms: Floats) -> tuple[float, float] | None:
    """Return the 95 % order-statistic interval of p95; None below 72 values, which are too few for one.

    Free of any distribution; both tails hold at most 2.5 % (David & Nagaraja 2003, 7.1).
    """
    values = np.sort(ms[~np.isnan(ms)])
    n, q, tail = len(values), 0.95, 0.025
    if n == 0:
        return None
    reach = math.ceil(8 * math.sqrt(n * q * (1 - q))) + 2
    first = max(0, math.floor(n * q) - reach)
    counts = np.arange(first, min(n, math.ceil(n * q) + reach) + 1)
    below = special.bdtr(counts, n, q)  # P(at most so many values lie under the quantile)
    low = first + int(np.searchsorted(below, tail, side="right"))  # the low-th smallest value, from 1
    high = first + int(np.searchsorted(below, 1 - tail, side="left")) + 1
    if low < 1 or high > n:
        return None
    return float(values[low - 1]), float(values[high - 1])


def block_length(n: int, users: float) -> int:
    """Return the length of a block: one round of the users, or a twentieth of the sample if that is more."""
    drawn = min(n, RESAMPLED)
    return max(1, min(math.ceil(max(users, drawn / BLOCKS)), max(1, drawn // 4)))


def block_indices(n: int, block: int, replicates: int, rng: np.random.Generator) -> Ints:
    """Return indices of shape (replicates, min(n, RESAMPLED)) that draw whole blocks from a ring of n."""
    drawn = min(n, RESAMPLED)
    starts = rng.integers(0, n, (replicates, math.ceil(drawn / block), 1))
    indices = (starts + np.arange(block)).reshape(replicates, -1)[:, :drawn] % n
    return indices.astype(np.int64, copy=False)


def scale_deviation(replicates: Floats, n: int) -> Floats:
    """Shrink the spread of replicates that drew fewer than n values to that of n."""
    if n <= RESAMPLED:
        return replicates
    centre = replicates.mean()
    result: Floats = centre + (replicates - centre) * math.sqrt(RESAMPLED / n)
    return result


def warm_up(x: Floats) -> int:
    """Return how many values at the start are warm-up, at most a quarter.

    MSER-5 (White 1997): cut where the standard error of what remains is least. Only a start that lies
    higher than the rest by `LEAST_SHIFT` of its standard errors is cut, since the bare rule cuts noise too.
    """
    batches = len(x) // 5
    if batches < 8:
        return 0
    means = x[: batches * 5].reshape(batches, 5).mean(axis=1)
    kept = np.arange(batches, 0, -1)
    sums, squares = (np.cumsum(v[::-1])[::-1] for v in (means, means**2))
    errors = (squares / kept - (sums / kept) ** 2) / kept
    cut = int(np.argmin(errors[: batches // 4 + 1]))
    if cut == 0:
        return 0
    rest = means[cut:]
    shift = means[:cut].mean() - rest.mean()
    spread = rest.std(ddof=1) * math.sqrt(1 / cut + 1 / len(rest))
    return cut * 5 if shift > LEAST_SHIFT * spread else 0


@dataclass(frozen=True, slots=True)
class Ratio:
    """b over a with its interval, and the two-sided p-value of "the ratio is 1"."""

    ratio: float
    low: float
    high: float
    p: float


STATISTICS: dict[str, Callable[[Floats], Floats]] = {
    "mean": lambda x: np.asarray(x.mean(axis=-1)),
    "p50": lambda x: harrell_davis(x, 0.50),
    "p95": lambda x: harrell_davis(x, 0.95),
    "p99": lambda x: harrell_davis(x, 0.99),
}


def ratio_interval(
    a: Floats,
    b: Floats,
    statistic: str = "p95",
    *,
    users: float = 1,
    noise: float = 0.0,
    replicates: int = 400,
    seed: int = 0,
) -> Ratio:
    """Return `statistic` of b over that of a, both in completion order and positive.

    Block bootstrap on the log of each, normal interval of 95 %; `noise` is the relative spread between two
    measures of the same thing, which resampling inside a run cannot see.
    """
    rng = np.random.default_rng(seed)
    function = STATISTICS[statistic]
    errors = []
    for x in (a, b):
        drawn = x[block_indices(len(x), block_length(len(x), users), replicates, rng)]
        errors.append(float(scale_deviation(np.log(function(drawn)), len(x)).std(ddof=1)))
    log_ratio = float(np.log(function(b)) - np.log(function(a)))
    error = max(math.sqrt(errors[0] ** 2 + errors[1] ** 2 + 2 * noise**2), 1e-12)
    half = Z95 * error
    p = float(2 * special.ndtr(-abs(log_ratio) / error))
    return Ratio(math.exp(log_ratio), math.exp(log_ratio - half), math.exp(log_ratio + half), p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for making several comparisons (Holm 1979), in the order given."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
