"""Whole reports: goldens, escaping, every kind of run that lacks something."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from harness.report import render
from harness.report.sections import make_document
from harness.report.text import markdown
from harness.results import (
    Bottleneck,
    ClientStats,
    Experiment,
    GpuStats,
    Knee,
    Limit,
    Problem,
    Quantiles,
    Report,
)

from . import sample

GOLDEN = Path(__file__).parent / "golden"
EVIL = "<script>alert(1)</script>|`*_[x](y)"
replace = sample.replace


@pytest.fixture(scope="module")
def run():
    return sample.run()


@pytest.fixture(scope="module")
def report(run):
    return sample.report(run)


@pytest.fixture(scope="module")
def rendered(report, run):
    return render(report, run)


class Page(HTMLParser):
    """Collects tags, attributes and visible text; style, script and charts are left out of the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.lines, self.skipped = [], [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag in ("style", "script", "svg"):
            self.skipped += 1
        elif not self.skipped and tag not in ("meta", "br"):
            kept = [f"{n}={v}" for n, v in attrs if n in ("class", "id", "scope", "lang")]
            self.lines.append(" ".join([f"<{tag}>", *kept]))

    def handle_endtag(self, tag):
        if tag in ("style", "script", "svg"):
            self.skipped -= 1

    def handle_data(self, data):
        if data.strip() and not self.skipped:
            self.lines.append("  " + " ".join(data.split(" ")).strip())

    @property
    def text(self):
        return "\n".join(line for line in self.lines if not line.startswith("<"))


def check_golden(name, text, request):
    path = GOLDEN / name
    if request.config.getoption("--update-goldens", default=False):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "run `pytest tests/report --update-goldens` if meant"


def test_markdown_is_as_it_was(rendered, request):
    check_golden("report.md", rendered.markdown, request)


def test_page_skeleton_is_as_it_was(rendered, request):
    check_golden("report.skeleton.txt", "\n".join(Page(rendered.html).lines) + "\n", request)


def test_chinese_markdown_is_as_it_was(report, run, request):
    check_golden("report.zh.md", render(report, run, lang="zh").markdown, request)


def test_json_is_the_report(rendered, report):
    assert msgspec.json.decode(rendered.json, type=Report) == report
    assert json.loads(rendered.json)["knee"]["cap"] == 6


def test_charts_come_as_svg_and_png(rendered):
    names = {"knee", "ttft", "stages", "timeline", "experiment-modality", "experiment-image-sweep"}
    assert set(rendered.charts) == {f"{n}.{ext}" for n in names for ext in ("svg", "png")}
    assert all(data.startswith(b"\x89PNG") for name, data in rendered.charts.items() if name.endswith("png"))


def test_page_needs_no_network(rendered):
    page = Page(rendered.html)
    assert page.links == []
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttp|WebSocket", rendered.html)
    assert "default-src 'none'" in rendered.html
    assert set(re.findall(r"https?://[^\"'<\s)]+", rendered.html)) <= {
        "http://127.0.0.1:8000/v1",
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert len(rendered.html) < 1_000_000


def test_every_id_in_the_page_is_there_once(rendered):
    ids = re.findall(r'\bid="([^"]+)"', rendered.html)
    assert len(ids) == len(set(ids))


def test_everything_from_outside_is_escaped(run, report):
    steps = [
        replace(
            step,
            label=f"{EVIL} {step.users}",
            by_kind={EVIL: step.by_kind["text_only"], "b": step.by_kind["one_image"]},
            gpu={EVIL: GpuStats(name=EVIL, missing={"util": EVIL}, n=9)},
            used=step.users != 2,
            why_not=EVIL,
        )
        for step in report.steps
    ]
    evil = replace(
        report, run=EVIL, profile=EVIL, steps=steps,
        target={"base_url": "http://u:secret@host/v1?api_key=secret", "model": EVIL, "endpoint": EVIL},
        problems=[Problem(code="failures", text=EVIL, step=EVIL)],
        bottleneck=Bottleneck(stage=EVIL, resource=EVIL, evidence=[EVIL]),
        experiments={EVIL: Experiment(verdict=EVIL, text=EVIL, columns=[EVIL, "ttft_p50_ms"],
                                      rows=[[EVIL, 1.0], ["b", 2.0]], problems=[EVIL])},
        limits=[Limit(section=EVIL, key=EVIL, value=EVIL, why=EVIL),
                Limit(section="s", key="k", value=None, why=EVIL)],
        versions={EVIL: EVIL},
        knee=replace(sample.knee(), notes=[EVIL]),
    )  # fmt: skip
    info = replace(run.info, stopped_early=EVIL)
    requests = run.requests.assign(kind=EVIL, label=EVIL)
    data = dataclasses.replace(run, info=info, requests=requests, broken_lines={EVIL: 2})
    out = render(evil, data)
    page = Page(out.html)
    assert page.tags.count("script") == 1
    assert "<script>alert" not in out.html.replace("\n", "")
    assert page.text.count("<script>alert(1)</script>") > 20
    assert "<script" not in out.markdown
    assert "`" not in out.markdown.replace(r"\`", "").replace("\\harness", "")
    for text in (out.html, out.markdown, out.json.decode()):
        assert "secret" not in text
    for name, chart in out.charts.items():
        assert b"<script" not in chart, name


def empty_steps(report, **changes):
    none = {"rps": None, "latency": Quantiles(), "ttft": Quantiles(), "itl": Quantiles(), "stages": {}}
    figures = none | {"by_kind": {}, "p95_ci_ms": None, "goodput": None, "meets_slo": None, "n": 0}
    figures |= {"out_tok_s": None, "in_tok_s": None, "rpm": None, "tpm": None, "little": None}
    return [replace(step, **figures, failures=12, outcomes={"reset": 12}, **changes) for step in report.steps]


def variants():
    run = sample.run()
    full = sample.report(run)
    no_gpu = [replace(step, gpu={}) for step in full.steps]
    no_engine = [replace(step, engine=None) for step in full.steps]
    bare = {"bottleneck": None, "experiments": {}, "limits": [], "problems": []}
    one = sample.run((4,))
    yield "no gpu", replace(full, steps=no_gpu, clock_bound_ms=None), sample.without(run, "gpu")
    yield "no engine", replace(full, steps=no_engine), sample.without(run, "engine")
    yield "one step", replace(sample.report(one), knee=Knee(status="insufficient"), **bare), one
    yield (
        "only failures",
        replace(full, steps=empty_steps(full), knee=Knee(status="insufficient"), valid=False, **bare),
        sample.without(run, "requests"),
    )
    zero = replace(full, steps=[], knee=None, valid=False, started_ns=None, seconds=None, target={}, **bare)
    info = replace(run.info, phases=[], ended_ns=None)
    nothing = sample.without(run, "requests", "gpu", "engine")
    yield (
        "nothing",
        zero,
        dataclasses.replace(nothing, info=info),
    )
    cut = replace(run.info.phases[-1], t1_ns=None, end_ns=None)
    cut_info = replace(run.info, ended_ns=None, phases=[*run.info.phases[:-1], cut])
    yield (
        "cut off",
        full,
        dataclasses.replace(run, info=cut_info, broken_lines={"requests.jsonl": 1}),
    )
    nan = float("nan")
    holes = [
        replace(s, rps=nan, latency=Quantiles(p50_ms=nan, p95_ms=None), client=ClientStats())
        for s in full.steps
    ]
    yield "holes", replace(full, steps=holes), run
    for status in ("none_in_range", "below_first", "inconclusive", "client_limited", "load_not_applied"):
        yield (
            status,
            replace(full, knee=Knee(status=status, cap=12 if status == "none_in_range" else None)),
            run,
        )


@pytest.mark.parametrize(("name", "report", "run"), [pytest.param(*v, id=v[0]) for v in variants()])
def test_a_run_that_lacks_something_is_reported_without_empty_words(name, report, run):
    out = render(report, run)
    charts = [file.removesuffix(".svg") for file in out.charts if file.endswith(".svg")]
    chinese = markdown(make_document(report, run, charts, "zh"))
    for page in (Page(out.html).text, out.markdown, chinese):
        assert not re.search(r"\b(None|nan|NaN|inf|null|undefined)\b", page), name
    for svg in (data.decode() for file, data in out.charts.items() if file.endswith("svg")):
        assert not re.search(r"\b(None|nan|NaN|null|undefined)\b", svg), name


def test_what_is_missing_is_said(run, report):
    steps = [replace(step, gpu={}, engine=None) for step in report.steps]
    text = render(replace(report, steps=steps), sample.without(run, "gpu", "engine")).markdown
    assert "(no GPU samples)" in text
    assert "(no engine metrics)" in text
    assert "Not shown: GPU, engine metrics (no samples)." in text


def test_failures_are_counted_by_outcome(run, report):
    steps = [
        replace(s, failures=3, outcomes={"ok": s.n, "reset": 2, "timeout_ttft": 1}) for s in report.steps[:2]
    ]
    text = render(replace(report, steps=steps), run).markdown
    assert "- 1 user: reset 2, timeout_ttft 1\n- 2 users: reset 2, timeout_ttft 1" in text


def test_simulated_figures_are_labelled_as_simulated(run, report, rendered):
    steps = [
        replace(s, gpu={"sim": GpuStats(name="simulated GPU", simulated=True, n=60, util_mean=0.5)})
        for s in report.steps
    ]
    out = render(replace(report, steps=steps), run)
    assert "simulated engine or GPU" in Page(out.html).text
    assert "GPU figures are simulated (simulated GPU)." in out.markdown
    assert "simulated" not in rendered.markdown


def test_repeated_and_drift_steps_do_not_double_the_line(run, report, rendered):
    again = replace(report.steps[0], label="1 user (drift)", phase=6)
    drift = replace(run.info.phases[0], index=6, label="1 user (drift)", experiment="drift")
    data = dataclasses.replace(run, info=replace(run.info, phases=[*run.info.phases, drift]))
    out = render(replace(report, steps=[*report.steps, again]), data)
    assert out.charts["ttft.svg"] == rendered.charts["ttft.svg"]
    assert "1 user (drift)" in out.markdown


def test_the_same_report_gives_the_same_bytes(run, report, rendered):
    assert render(report, run) == rendered


def test_rendering_leaves_the_tables_alone(run, report):
    before = run.requests.copy(deep=True)
    render(report, run)
    pd.testing.assert_frame_equal(run.requests, before)
