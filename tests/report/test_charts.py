import re

from harness.report.charts import knee_chart, stage_chart, ttft_chart
from harness.report.draw import draw, inline
from harness.results import Knee, Quantiles, Step

from . import sample

RUN = sample.run()
REPORT = sample.report(RUN)


def layers(spec, where):
    """Return the data rows of all layers for which `where(layer)` holds."""
    found = []
    for part in spec.get("vconcat", [spec]):
        for layer in part.get("layer", [part]):
            if where(layer):
                found += layer.get("data", {}).get("values", [])
    return found


def test_knee_chart_draws_each_step_at_its_load_and_throughput():
    spec = knee_chart(REPORT.steps, REPORT.knee, 2000)
    dots = layers(
        spec["vconcat"][0], lambda x: x["mark"] and x["mark"]["type"] == "point" if "mark" in x else False
    )
    assert [(row["load"], row["value"]) for row in dots] == [(s.users, s.rps) for s in REPORT.steps]


def test_knee_chart_names_cap_and_knee_once_at_their_loads():
    svg, _ = draw(knee_chart(REPORT.steps, REPORT.knee, 2000))
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert texts.count("cap 6") == 1
    assert texts.count("knee 8") == 1
    assert "SLO 2,000 ms" in texts
    assert 'aria-label="5-95 % range of the cap: 6 to 8"' in svg
    assert 'aria-label="8 users: p95 1,665 ms (366 requests)"' in svg


def test_an_slo_far_above_all_points_does_not_flatten_the_chart():
    svg, _ = draw(knee_chart(REPORT.steps, REPORT.knee, 60_000))
    assert "SLO" not in svg


def test_at_least_stands_where_no_knee_was_found():
    knee = Knee(status="none_in_range", cap=12)
    svg, _ = draw(knee_chart(REPORT.steps, knee, None))
    assert ">at least 12<" in svg
    assert "knee" not in svg


def test_unused_steps_are_hollow_and_out_of_the_line():
    steps = [sample.replace(s, used=s.users != 4) for s in REPORT.steps]
    upper = knee_chart(steps, REPORT.knee, None)["vconcat"][0]
    lines = layers(upper, lambda x: x.get("mark", {}).get("strokeWidth") == 2)
    assert [row["load"] for row in lines] == [1, 2, 6, 8, 12]
    svg, _ = draw(knee_chart(steps, REPORT.knee, None))
    assert len(re.findall(r'fill="white" stroke="#1f5fa8"', svg)) == 2


def test_long_times_are_drawn_in_seconds():
    steps = [
        Step(
            label=f"{n} users",
            phase=i,
            users=n,
            n=30,
            rps=1.0,
            ttft=Quantiles(p50_ms=5000.0 * n, p99_ms=12_000.0 * n),
        )
        for i, n in enumerate((1, 2))
    ]
    svg, _ = draw(ttft_chart(steps, None, None))
    assert "Time to first token (s)" in svg
    assert 'aria-label="2 users: p99 24.0 s (30 requests)"' in svg


def test_stage_shares_are_drawn_in_the_order_of_the_request_with_what_is_left():
    rows = stage_chart(REPORT.steps)["data"]["values"]
    last = [row for row in rows if row["load"] == "12 users"]
    assert [row["stage"] for row in last] == [
        "preprocess",
        "queue",
        "prefill",
        "decode",
        "network, client, unknown",
    ]
    assert abs(sum(row["share"] for row in last) - 1) < 1e-9
    queue = REPORT.steps[-1].stages["queue"].share
    assert last[1]["share"] == queue


def test_nothing_to_draw_is_no_chart():
    empty = [Step(label="1 user", phase=0, users=1)]
    assert knee_chart(empty, None, None) is None
    assert ttft_chart(empty, None, None) is None
    assert stage_chart(empty) is None
    assert knee_chart([], REPORT.knee, None) is None


def test_ids_of_two_charts_in_one_page_differ():
    svg, png = draw(knee_chart(REPORT.steps, REPORT.knee, 2000))
    a, b = inline(svg, "a"), inline(svg, "b")
    ids = [set(re.findall(r'id="([^"]+)"', text)) for text in (a, b)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert set(re.findall(r"url\(#([^)]+)\)", a)) == ids[0]
    assert png.startswith(b"\x89PNG")


def test_names_of_near_percentiles_do_not_overlap():
    steps = [
        Step(label="8 users", phase=0, users=8, n=30, ttft=Quantiles(p50_ms=100, p95_ms=101, p99_ms=101.5))
    ]
    svg, _ = draw(ttft_chart(steps, None, None))
    heights = [float(y) for y in re.findall(r"translate\([\d.]+,(-?[\d.]+)\)[^>]*>p(?:50|95|99)<", svg)]
    assert len(heights) == 3
    assert min(abs(a - b) for i, a in enumerate(heights) for b in heights[:i]) >= 11
