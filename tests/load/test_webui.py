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
    )


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
        "ttft_p95_ms": "30", "state": "done",
    }  # fmt: skip


def test_the_live_pages_data_follow_the_run(session: Any, tmp_path: Path) -> None:
    client = client_of(session)
    assert client.get("/knee/data.json").json == {"state": "idle", "error": None, "run": None}
    session.preparing = True
    assert client.get("/knee/data.json").json["state"] == "preparing"
    session.preparing, session.error = False, "no such profile"
    assert client.get("/knee/data.json").json == {"state": "failed", "error": "no such profile", "run": None}
    session.error, session.run = None, run_of(tmp_path)
    data = client.get("/knee/data.json").json
    shown = {key: data[key] for key in ("state", "number", "of", "users", "in_flight")}
    assert shown == {"state": "running", "number": 1, "of": 3, "users": 2, "in_flight": 1}
    assert data["phase"] == {"label": "2 users", "stage": "drain", "done": 21, "missing": 29}
    assert data["steps"][0]["rps"] == 10.0
    session.run, session.last = None, session.run
    assert client.get("/knee/data.json").json["state"] == "done"


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
    assert '<a href="/knee"' in client.get("/").text
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
