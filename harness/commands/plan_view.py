"""What `--dry-run` prints: steps, duration, requests and tokens expected."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from harness.commands.tables import console, plain_table
from harness.plan import Phase, Plan, step_label
from harness.profile import Profile


def print_plan(profile: Profile, plan: Plan, *, as_json: bool) -> None:
    """Print the plan as a table or as JSON; it sends nothing."""
    rows = [_row(phase, profile, plan) for phase in plan.phases]
    totals = {
        "min_seconds": sum(row["min_seconds"] for row in rows),
        "max_seconds": sum(row["max_seconds"] for row in rows),
        "min_requests": sum(row["min_requests"] for row in rows),
        "min_output_tokens": sum(row["min_output_tokens"] for row in rows),
    }
    if as_json:
        found = {"profile": profile.name, "target": profile.target.base_url, "phases": rows, **totals}
        click.echo(msgspec.json.encode(found).decode())
        return
    out = console()
    columns = ("seconds", "requests at least", "output tokens at least")
    table = plain_table("step", *columns, numbers=columns)
    for row in rows:
        seconds = f"{row['min_seconds']:g}-{row['max_seconds']:g}"
        step = row["label"] if row["label"].startswith(row["load"]) else f"{row['label']}, {row['load']}"
        table.add_row(step, seconds, str(row["min_requests"]), str(row["min_output_tokens"]))
    out.print(f"{profile.name}: {plan.experiment} against {profile.target.base_url}", markup=False)
    out.print(table)
    out.print(
        f"{totals['min_seconds'] / 60:.1f} to {totals['max_seconds'] / 60:.1f} min, at least "
        f"{totals['min_requests']} requests, {totals['min_output_tokens']} output tokens. Nothing was sent."
    )


def _row(phase: Phase, profile: Profile, plan: Plan) -> dict[str, Any]:
    hold = phase.hold
    least = phase.requests or hold.wanted(phase.users)
    lengths = [
        (plan.payloads[entry.payload].max_tokens if plan.payloads else None) or profile.generation.max_tokens
        for entry in phase.schedule
    ]
    return {
        "label": phase.label,
        "experiment": phase.experiment,
        "load": step_label(phase.users, phase.rate),
        "min_seconds": 0.0 if phase.requests else hold.settle_s + hold.seconds,
        "max_seconds": hold.settle_s + hold.max_seconds,
        "min_requests": least,
        "min_output_tokens": round(least * sum(lengths) / max(len(lengths), 1)),
    }
