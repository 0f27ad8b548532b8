"""One fixed input again and again: one-time cost, steady, or swinging.

locust -f locustfiles/repeat.py --profile profiles/steps.yaml --headless
"""

import os

from harness.load.session import register
from harness.load.shape import KneeShape
from harness.load.user import KneeUser

__all__ = ["KneeShape", "KneeUser"]

register("repeat", os.environ)
