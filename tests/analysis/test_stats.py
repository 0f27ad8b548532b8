"""Statistics against known truth: coverage, published values, and silence on noise."""

import math

import numpy as np
import pytest

from harness.analysis import stats


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_quantiles_interpolate_linearly_and_leave_nan_out() -> None:
    found = stats.quantiles(np.array([10.0, np.nan, 20.0, 30.0, 40.0]))
    assert (found.p50_ms, found.mean_ms, found.max_ms) == (25.0, 25.0, 40.0)
    assert found.p95_ms == pytest.approx(38.5)
    assert stats.quantiles(np.array([np.nan])).p95_ms is None


@pytest.mark.parametrize("n", [5, 20, 73, 600, 5000])
def test_harrell_davis_agrees_with_scipy(n: int) -> None:
    from scipy.stats.mstats import hdquantiles

    x = rng(n).exponential(size=n)
    assert float(stats.harrell_davis(x, 0.95)) == pytest.approx(float(hdquantiles(x, [0.95])[0]), rel=1e-6)


def test_harrell_davis_is_steadier_than_one_order_statistic() -> None:
    x = rng().lognormal(sigma=0.3, size=(4000, 60))
    spread = stats.harrell_davis(x, 0.95).std() / np.sort(x, axis=1)[:, 57].std()
    assert spread < 0.98
    assert stats.harrell_davis(x, 0.95).mean() == pytest.approx(math.exp(0.3 * 1.645), rel=0.03)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(0, 20, 0.0, 0.1611), (3, 100, 0.0103, 0.0845), (20, 20, 0.8389, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson(k: int, n: int, low: float, high: float) -> None:
    assert stats.wilson(k, n) == pytest.approx((low, high), abs=1e-4)


def test_interval_of_p95_begins_at_72_values() -> None:
    x = rng().exponential(size=72)
    assert stats.p95_interval(x[:71]) is None
    interval = stats.p95_interval(x)
    assert interval is not None
    assert interval[1] == x.max()


def test_interval_of_p95_covers_the_truth() -> None:
    truth, inside = -math.log(0.05), 0
    for row in rng(1).exponential(size=(1000, 200)):
        low, high = stats.p95_interval(row) or (0.0, 0.0)
        inside += low <= truth <= high
    assert 0.94 <= inside / 1000 <= 0.99


def test_blocks_keep_neighbours_together_and_wrap() -> None:
    drawn = stats.block_indices(30, 10, 50, rng())
    assert drawn.shape == (50, 30)
    assert ((np.diff(drawn.reshape(50, 3, 10)) % 30) == 1).all()
    assert (drawn.max(), drawn.min()) == (29, 0)


def test_a_block_spans_a_round_of_the_users() -> None:
    assert stats.block_length(100, 12) == 12
    assert stats.block_length(1000, 12) == 50
    assert stats.block_length(20, 100) == 5


def test_m_out_of_n_has_the_error_of_the_whole() -> None:
    x = rng(2).exponential(size=50_000)
    means = x[stats.block_indices(len(x), 50, 400, rng(3))].mean(axis=1)
    error = stats.scale_deviation(means, len(x)).std()
    assert error == pytest.approx(1 / math.sqrt(50_000), rel=0.15)


def test_blocks_see_the_error_of_correlated_requests() -> None:
    noise = rng(4).normal(size=5000)
    series = np.convolve(noise, np.ones(20), mode="valid")[:2000]  # neighbours share 19 of 20 terms
    truth = 20 / math.sqrt(2000)
    whole = series[stats.block_indices(2000, 100, 400, rng(5))].mean(axis=1).std()
    single = series[stats.block_indices(2000, 1, 400, rng(5))].mean(axis=1).std()
    assert whole == pytest.approx(truth, rel=0.35)
    assert single < 0.4 * truth


def test_warm_up_is_cut_where_it_is() -> None:
    x = rng(6).gamma(10, 0.1, 400)
    x[:30] *= 2
    assert 25 <= stats.warm_up(x) <= 100
    assert stats.warm_up(x[100:]) == 0


def test_warm_up_is_seldom_cut_from_noise() -> None:
    cuts = [stats.warm_up(row) for row in rng(7).gamma(4, 0.25, (300, 200))]
    assert sum(cut > 0 for cut in cuts) <= 15
    assert stats.warm_up(np.ones(39)) == 0
    assert stats.warm_up(np.ones(400)) == 0


def test_ratio_interval_covers_the_truth_and_finds_nothing_in_noise() -> None:
    inside = wrong = 0
    for seed in range(200):
        a, b = rng(seed).gamma(4, 0.25, (2, 200))
        found = stats.ratio_interval(a, 1.3 * b, "p95", replicates=100, seed=seed)
        inside += found.low <= 1.3 <= found.high
        wrong += stats.ratio_interval(a, b, "mean", replicates=100, seed=seed).p < 0.05
    assert inside >= 178
    assert wrong <= 22


def test_ratio_interval_finds_a_change_and_knows_of_noise_between_runs() -> None:
    a, b = rng(8).gamma(25, 0.04, (2, 500))
    assert stats.ratio_interval(a, 1.1 * b, "mean").p < 0.001
    assert stats.ratio_interval(a, 1.1 * b, "mean", noise=0.06).p > 0.05
    assert stats.ratio_interval(a, a, "p50").ratio == 1.0


def test_holm_adjusts_in_the_order_given() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []
