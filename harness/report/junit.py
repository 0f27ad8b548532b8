"""A report, and a comparison of two runs, as JUnit XML for pipelines.

A report gives a case for the verdict, the SLO where it is judged, each measurement and each problem. A ladder
passes its knee by design, so the SLO is judged at the steady level, or at the only step there is. A problem
fails where the run is not valid; elsewhere it is a skipped case: shown, without failing.
"""

from __future__ import annotations

from xml.etree import ElementTree

from harness.analysis.compare import Comparison
from harness.report.comparison import WORDS, difference_rows, values
from harness.report.numbers import plain
from harness.report.verdict import sentence
from harness.results import Report, Step

NO_VERDICT = ("insufficient", "client_limited", "load_not_applied")


def junit(report: Report) -> bytes:
    """Return the report as one JUnit test suite, UTF-8."""
    suite = ElementTree.Element("testsuite", name=f"knee {report.profile} {report.experiment}")
    verdict = _case(suite, "verdict", "verdict")
    words = sentence(report, report.steps, "en")
    if not report.valid or (report.knee is not None and report.knee.status in NO_VERDICT):
        _result(verdict, "failure", words)
    else:
        _output(verdict, words)
    judged = _judged(report)
    if judged is not None and judged.meets_slo is not None:
        case = _case(suite, "slo", f"SLO at {judged.label}")
        figures = f"p95 {plain(judged.latency.p95_ms)} ms, TTFT p95 {plain(judged.ttft.p95_ms)} ms, "
        figures += f"{judged.failures} of {judged.n + judged.failures} requests failed"
        if judged.meets_slo:
            _output(case, figures)
        else:
            _result(case, "failure", figures)
    for name, experiment in report.experiments.items():
        _output(_case(suite, "measurement", name), experiment.text)
    for problem in report.problems:
        case = _case(suite, "problem", f"{problem.code}: {problem.step or 'whole run'}")
        _result(case, "skipped" if report.valid else "failure", problem.text)
    return _finished(suite)


def comparison_junit(comparison: Comparison) -> bytes:
    """Return the comparison as one JUnit suite, a case per figure; what cannot be told is skipped.

    Traffic that differs is a skipped case of its own: shown, without failing.
    """
    suite = ElementTree.Element("testsuite", name=f"knee compare {comparison.run_b} with {comparison.run_a}")
    for change in comparison.changes:
        case = _case(suite, f"compare.{change.step}", f"{change.figure} of {change.kind}")
        before, after = values(change)
        words = f"{before} in A, {after} in B: {WORDS[change.word]}"
        if change.word == "regression":
            _result(case, "failure", words)
        elif change.word in ("unclear", "beyond_cap"):
            _result(case, "skipped", words)
    cap = _case(suite, "compare", "cap")
    if comparison.cap_fell:
        _result(cap, "failure", comparison.text)
    traffic = _case(suite, "compare", "traffic")
    for _, head, rows in difference_rows(comparison, "traffic"):
        _result(traffic, "skipped", f"{head} {'; '.join(map(': '.join, rows))}")
    return _finished(suite)


def _finished(suite: ElementTree.Element) -> bytes:
    for count, tag in (("tests", "testcase"), ("failures", ".//failure"), ("skipped", ".//skipped")):
        suite.set(count, str(len(suite.findall(tag))))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def _judged(report: Report) -> Step | None:
    """Return the step at which the SLO is judged."""
    if len(report.steps) == 1:
        return report.steps[0]
    steady = report.knee.steady if report.knee is not None else None
    return next((step for step in report.steps if steady is not None and step.load == steady), None)


def _case(suite: ElementTree.Element, group: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=f"knee.{group}", name=_printable(name))


def _result(case: ElementTree.Element, tag: str, message: str) -> None:
    ElementTree.SubElement(case, tag, message=_printable(message))


def _output(case: ElementTree.Element, text: str) -> None:
    ElementTree.SubElement(case, "system-out").text = _printable(text)


def _printable(text: str) -> str:
    """Return text without the control characters that XML cannot hold."""
    return "".join(c for c in text if c in "\t\n" or (c >= " " and c not in "￾￿"))
