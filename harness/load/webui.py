"""The run in Locust's web UI: a tab with the steps, a live page, and the report.

Locust's own tabs hold tables only and know nothing of steps, so what moves has a page of its own, `/knee`,
which every page links to.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response, jsonify, redirect, request, send_from_directory

from harness.load.snapshot import snapshot

if TYPE_CHECKING:
    from harness.load.session import Session

TAB = "knee"
COLUMNS = {
    "label": "Step",
    "n": "# Requests",
    "failures": "# Failures",
    "rps": "Requests/s",
    "p50_ms": "Median (ms)",
    "p95_ms": "p95 (ms)",
    "ttft_p95_ms": "TTFT p95 (ms)",
    "state": "State",
}
LINK = (
    '<a href="{base}/knee" style="position:fixed;right:16px;bottom:16px;z-index:2000;padding:9px 16px;'
    "border-radius:20px;background:#15803d;color:#fff;font:600 14px sans-serif;text-decoration:none;"
    'box-shadow:0 1px 4px rgba(0,0,0,.4)">Knee: steps and report</a>'
)
log = logging.getLogger(__name__)


def attach(session: Session, web_ui: Any) -> None:
    """Add the tab, the pages and the links to Locust's web UI; call it before the server starts."""
    options = session.environment.parsed_options
    base = options.web_base_path or ""
    if not options.web_host:  # Locust answers every origin, so only this host is served unless asked
        web_ui.host = "127.0.0.1"
        log.info("The web UI is bound to 127.0.0.1; --web-host '*' opens it to the network")
    web_ui.template_args["extended_tabs"] = [{"title": "Knee", "key": TAB}]
    structure = [{"key": key, "title": title} for key, title in COLUMNS.items()]
    web_ui.template_args["extended_tables"] = [{"key": TAB, "structure": structure}]
    pages = _pages(session, web_ui)
    web_ui.app.register_blueprint(pages, url_prefix=f"{base}/knee")

    @web_ui.app.after_request  # type: ignore[untyped-decorator]
    def add_ours(response: Response) -> Response:
        path = request.path.removeprefix(base)
        if response.status_code != 200:
            return response
        if path == "/stats/requests" and response.is_json:
            table = [{"key": TAB, "data": _rows(state_of(session))}]
            response.set_data(json.dumps({**response.get_json(), "extended_stats": table}))
        elif path in ("/", "") and response.mimetype == "text/html":
            page = response.get_data(as_text=True)
            response.set_data(page.replace("</body>", LINK.format(base=base) + "</body>"))
        return response


def state_of(session: Session) -> dict[str, Any]:
    """Return what is shown of the run that is on, else of the last one."""
    run = session.run or session.last
    if session.run is not None:
        state = "running" if not session.run.ladder.over else "ending"
    elif session.error is not None:
        state = "failed"
    else:
        state = "done" if run is not None else "preparing" if session.preparing else "idle"
    shown = None if state == "failed" else run
    return snapshot(shown, state=state, error=session.error)


def _pages(session: Session, web_ui: Any) -> Blueprint:
    pages = Blueprint("knee", __name__)
    page = Path(__file__).with_name("live.html").read_text(encoding="utf-8")

    @pages.route("")
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def live() -> str:
        return page

    @pages.route("/data.json")
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def data() -> Response:
        return jsonify(state_of(session))

    @pages.route("/report")
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def report() -> Any:
        run = session.last
        if run is None or not run.dir.report_html.exists():
            return redirect(request.path.removesuffix("/report"))
        return send_from_directory(run.dir.path.resolve(), run.dir.report_html.name)

    return pages


def _rows(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tab's rows: rounded, since the table prints what it gets."""
    rows = []
    for step in state.get("steps", []):
        row = {key: step.get(key) for key in COLUMNS}
        for key in ("p50_ms", "p95_ms", "ttft_p95_ms"):
            row[key] = "-" if step[key] is None else f"{step[key]:.0f}"
        row["rps"] = "-" if step["rps"] is None else f"{step['rps']:.2f}"
        row["state"] = "done" if step["done"] else "measuring"
        rows.append(row)
    return rows
