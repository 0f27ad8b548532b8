"""The step ladder: how many users the service carries before latency outruns load.

locust -f locustfiles/steps.py --profile profiles/steps.yaml --headless
"""

import os

from harness.load.session import register
from harness.load.shape import KneeShape
from harness.load.user import KneeUser

__all__ = ["KneeShape", "KneeUser"]

register("steps", os.environ)
