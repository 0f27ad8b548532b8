"""The run in Locust's web UI: a strip on every page, a tab with the steps, a live page, and the report.

Locust's own tabs hold tables only, know nothing of steps and stand still once a run has stopped. So what
moves has a page of its own, `/knee`, and a strip above Locust's says how far the run is and, at its end, the
verdict. The strip stands in the page's flow: a button that floats would cover what is Locust's.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response, jsonify, redirect, request, send_from_directory

from harness.load.snapshot import Live

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
    "votes": "Votes for a knee",
    "note": "Note",
}
FORMATS = {"rps": "{:.2f}", "p50_ms": "{:.0f}", "p95_ms": "{:.0f}", "ttft_p95_ms": "{:.0f}"}
NONE = "–"
FOLDER = Path(__file__).parent
log = logging.getLogger(__name__)


def attach(session: Session, web_ui: Any) -> None:
    """Add the strip, the tab and the pages to Locust's web UI; call it before the server starts."""
    options = session.environment.parsed_options
    base = options.web_base_path or ""
    if not options.web_host:  # Locust answers every origin, so only this host is served unless asked
        web_ui.host = "127.0.0.1"
        log.info("The web UI is bound to 127.0.0.1; --web-host '*' opens it to the network")
    web_ui.template_args["extended_tabs"] = [{"title": "Knee", "key": TAB}]
    structure = [{"key": key, "title": title} for key, title in COLUMNS.items()]
    web_ui.template_args["extended_tables"] = [{"key": TAB, "structure": structure}]
    live = Live(session)
    web_ui.app.register_blueprint(_pages(session, live, web_ui), url_prefix=f"{base}/knee")
    strip = "<body>" + (FOLDER / "strip.html").read_text(encoding="utf-8").replace("{base}", base)

    @web_ui.app.after_request  # type: ignore[untyped-decorator]
    def add_ours(response: Response) -> Response:
        path = request.path.removeprefix(base)
        if response.status_code != 200:
            return response
        if path == "/stats/requests" and response.is_json:
            table = [{"key": TAB, "data": _rows(live.state())}]
            response.set_data(json.dumps({**response.get_json(), "extended_stats": table}))
        elif path in ("/", "") and response.mimetype == "text/html":
            response.set_data(response.get_data(as_text=True).replace("<body>", strip, 1))
        return response


def _pages(session: Session, live: Live, web_ui: Any) -> Blueprint:
    pages = Blueprint("knee", __name__)
    page = (FOLDER / "live.html").read_text(encoding="utf-8")

    @pages.route("")
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def live_page() -> str:
        return page

    @pages.route("/data.json")
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def data() -> Response:
        return jsonify(live.state())

    @pages.route("/report")
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def report() -> Any:
        run = session.last
        if run is None or not run.dir.report_html.exists():
            return redirect(request.path.removesuffix("/report"))
        return send_from_directory(run.dir.path.resolve(), run.dir.report_html.name)

    return pages


def _rows(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tab's rows: as text, since the table prints what it gets."""
    rows = []
    for step in state.get("steps", []):
        row = {key: step[key] for key in COLUMNS}
        for key, form in FORMATS.items():
            row[key] = NONE if step[key] is None else form.format(step[key])
        row["votes"] = NONE if step["votes"] is None else ", ".join(step["votes"]) or "none"
        rows.append(row)
    return rows
