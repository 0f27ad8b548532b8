"""The report: page, Markdown, JSON, JUnit and charts of what the analysis concluded. It computes nothing."""

from harness.report.junit import junit
from harness.report.render import Rendered, render

__all__ = ["Rendered", "junit", "render"]
