"""The same picture at several sides: where the cost of encoding jumps.

locust -f locustfiles/image_sweep.py --profile profiles/steps.yaml --headless
"""

import os

from harness.load.session import register
from harness.load.shape import KneeShape
from harness.load.user import KneeUser

__all__ = ["KneeShape", "KneeUser"]

register("image_sweep", os.environ)
