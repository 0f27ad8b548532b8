"""All measurements in one run and one report.

locust -f locustfiles/review.py --profile profiles/steps.yaml --headless
"""

import os

from harness.load.session import register
from harness.load.shape import KneeShape
from harness.load.user import KneeUser

__all__ = ["KneeShape", "KneeUser"]

register("review", os.environ)
