"""The pages added to Locust's web UI, over a small application that stands for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from flask import Flask, Response, jsonify

from harness.load.ladder import Ladder
from harness.load.step import Finished
from harness.load.webui import attach
from harness.plan import make_plan
from harness.profile import Profile
from harness.results import Knee, Report
from harness.results import Step as ReportStep
from harness.rundir import RunDir

MS = 1_000_000


def run_of(folder: Path) -> Any:
    raw = {
        "name": "small",
        "target": {"base_url": "http://127.0.0.1:1/v1"},
        "traffic": {"mix": [{"kind": "a"}]},
        "load": {"users": [2, 4]},
    }
    profile = msgspec.convert(raw, Profile)
    plan = make_plan(profile)
    ladder = Ladder(profile, plan, ["w"], now_s=0.0)
    step = ladder.step
    step.stage, step.ready_ns, step.t0_ns, step.t1_ns = "drain", 0, 0, 2000 * MS
    for number in range(21):
        row = Finished(
            worker="w",
            user=0,
            phase=0,
            wall_ns=number * 95 * MS,
            total_ms=100.0 + number,
            outcome="ok",
            ttft_ms=30.0,
        )
        step.add(row)
    step.add(Finished(worker="w", user=0, phase=0, wall_ns=5 * MS, total_ms=1.0, outcome="reset"))
    status = SimpleNamespace(users=2, in_flight=1)
    return SimpleNamespace(
        ladder=ladder,
        sampler=SimpleNamespace(latest=lambda: ({}, None)),
        dir=RunDir(folder),
        profile=profile,
        plan=plan,
        crew=SimpleNamespace(ids=["w"]),
        statuses={"w": status},
        ended=22,
        analysing=False,
        report=None,
    )


def report_of() -> Report:
    steps = [
        ReportStep(label="2 users", phase=0, users=2, n=21),
        ReportStep(label="4 users", phase=1, users=4, n=9, used=False, why_not="too little was measured"),
    ]
    knee = Knee(status="none_in_range", cap=2.0, confidence=0.93)
    return Report(run="r", profile="small", experiment="steps", valid=True, steps=steps, knee=knee)


@pytest.fixture
def session() -> Any:
    options = SimpleNamespace(web_base_path="", web_host="")
    environment = SimpleNamespace(parsed_options=options)
    return SimpleNamespace(environment=environment, run=None, last=None, error=None, preparing=False)


def client_of(session: Any, *, locked: bool = False) -> Any:
    app = Flask("stand-in")

    def auth(view: Any) -> Any:
        def locked_view(*args: Any, **kwargs: Any) -> Any:
            return Response("log in", 401)

        locked_view.__name__ = view.__name__
        return locked_view if locked else view

    web_ui = SimpleNamespace(app=app, template_args={}, host="", auth_required_if_enabled=auth)
    app.add_url_rule("/", "index", lambda: "<html><body><div id=root></div></body></html>")
    app.add_url_rule("/stats/requests", "stats", lambda: jsonify({"stats": [1]}))
    attach(session, web_ui)
    session.web_ui = web_ui
    return app.test_client()


def test_the_tab_and_its_table_share_a_key(session: Any) -> None:
    client = client_of(session)
    (tab,), (table,) = (session.web_ui.template_args[k] for k in ("extended_tabs", "extended_tables"))
    assert tab["key"] == table["key"] == client.get("/stats/requests").json["extended_stats"][0]["key"]


def test_locusts_own_statistics_are_kept_and_the_steps_added(session: Any, tmp_path: Path) -> None:
    client = client_of(session)
    assert client.get("/stats/requests").json["extended_stats"][0]["data"] == []
    session.run = run_of(tmp_path)
    answer = client.get("/stats/requests").json
    assert answer["stats"] == [1]
    (row,) = answer["extended_stats"][0]["data"]
    # 20 requests ended within the two seconds of the window, 21 good ones and a failure began in it
    assert row == {
        "label": "2 users", "n": 21, "failures": 1, "rps": "10.00", "p50_ms": "110", "p95_ms": "119",
        "ttft_p95_ms": "30", "votes": "–", "note": "",
    }  # fmt: skip
    session.run.report = report_of()
    (row,) = client.get("/stats/requests").json["extended_stats"][0]["data"]
    assert (row["votes"], row["note"]) == ("–", "cap")


def test_the_live_pages_data_follow_the_run(session: Any, tmp_path: Path) -> None:
    client = client_of(session)

    def data() -> Any:
        return client.get("/knee/data.json").json

    assert data() == {"state": "idle", "headline": "No run yet", "detail": "", "run": None}
    session.preparing = True
    assert data()["state"] == "preparing"
    session.preparing, session.run = False, run_of(tmp_path)
    shown = {key: data()[key] for key in ("state", "headline", "detail", "progress", "users", "in_flight")}
    assert shown == {
        "state": "running", "headline": "2 users (1 of 3)", "progress": pytest.approx(1 / 3), "users": 2,
        "detail": "the last requests of the step are ending, 1 in flight", "in_flight": 1,
    }  # fmt: skip
    assert data()["steps"][0]["rps"] == 10.0
    session.run.ladder.stop("stopped in the web UI")
    assert (data()["state"], data()["detail"]) == ("ending", "stopped in the web UI")
    session.run.analysing = True
    assert data()["state"] == "analysing"
    session.run, session.last = None, session.run
    assert (data()["state"], data()["headline"]) == ("done", "Done, without a report")


def test_the_end_shows_the_reports_verdict_until_the_next_run(session: Any, tmp_path: Path) -> None:
    client = client_of(session)
    session.last = run_of(tmp_path)
    session.last.report = report_of()
    (tmp_path / "report.html").touch()
    data = client.get("/knee/data.json").json
    assert data["headline"] == "The service carries at least 2 users: no knee up to the last step measured."
    assert (data["tone"], data["report"]) == ("good", True)
    assert data["facts"] == [["Status", "none in range"], ["Cap", "2"], ["Confidence", "93 %"]]
    session.preparing = True
    assert client.get("/knee/data.json").json["run"] is None
    session.preparing, session.error = False, "no such profile"
    data = client.get("/knee/data.json").json
    assert data == {
        "state": "failed", "headline": "The run could not begin", "detail": "no such profile", "run": None,
    }  # fmt: skip
    session.error, session.run = None, run_of(tmp_path)
    data = client.get("/knee/data.json").json
    assert (data["state"], data["tone"], data["facts"], data["report"]) == ("running", None, [], False)


def test_the_report_is_served_when_it_is_there(session: Any, tmp_path: Path) -> None:
    client = client_of(session)
    assert client.get("/knee/report").status_code == 302
    session.last = run_of(tmp_path)
    assert client.get("/knee/report").location == "/knee"
    (tmp_path / "report.html").write_text("<h1>The report</h1>")
    with client.get("/knee/report") as answer:
        assert (answer.status_code, answer.text) == (200, "<h1>The report</h1>")


def test_every_page_of_ours_asks_for_the_login_that_locust_asks_for(session: Any) -> None:
    client = client_of(session, locked=True)
    assert {client.get(path).status_code for path in ("/knee", "/knee/data.json", "/knee/report")} == {401}


def test_locusts_page_links_to_ours_and_ours_needs_no_network(session: Any) -> None:
    client = client_of(session)
    page = client.get("/").text
    assert page.index('<a href="/knee"') < page.index("<div id=root>")
    assert "{base}" not in page
    page = client.get("/knee").text
    assert "<script>" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_without_a_host_only_this_machine_is_served(session: Any) -> None:
    client_of(session)
    assert session.web_ui.host == "127.0.0.1"
    session.environment.parsed_options.web_host = "*"
    client_of(session)
    assert session.web_ui.host == ""
