from xml.etree import ElementTree

from harness.report import junit
from harness.results import Knee

from . import sample

REPORT = sample.report(sample.run())


def cases(report):
    suite = ElementTree.fromstring(junit(report)).find("testsuite")
    return suite, {case.get("classname") + "/" + case.get("name"): case for case in suite}


def test_a_good_run_passes_and_shows_its_problem_as_skipped():
    suite, found = cases(REPORT)
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "0", "1")
    assert "6 users" in found["knee.verdict/verdict"].find("system-out").text
    assert found["knee.problem/hold_too_short: 1 user"].find("skipped").get("message").startswith("67 good")
    assert "knee.slo/SLO at 4 users" in found  # judged at the steady level, not beyond the knee


def test_a_missed_slo_at_the_steady_level_fails():
    steps = [sample.replace(s, meets_slo=s.users != 4) for s in REPORT.steps]
    suite, found = cases(sample.replace(REPORT, steps=steps))
    assert suite.get("failures") == "1"
    assert found["knee.slo/SLO at 4 users"].find("failure") is not None


def test_a_run_that_is_not_valid_fails_in_verdict_and_problems():
    report = sample.replace(REPORT, valid=False, knee=Knee(status="client_limited"))
    suite, found = cases(report)
    assert suite.get("failures") == "2"
    assert "load generator" in found["knee.verdict/verdict"].find("failure").get("message")


def test_characters_that_xml_cannot_hold_are_left_out():
    problem = sample.Problem(code="failures", text='bad \x00\x1b[31m <b> & "x" 汉')
    _, found = cases(sample.replace(REPORT, problems=[problem]))
    assert found["knee.problem/failures: whole run"].find("skipped").get("message") == 'bad [31m <b> & "x" 汉'
