"""One fixed input again and again: one-time cost, steady, or swinging.

locust -f locustfiles/repeat.py --profile profiles/steps.yaml --headless
"""

import os
import sys

# Locust puts the working folder first: a package `harness` that happens to lie there is not this one.
sys.path.sort(key=lambda place: place in ("", os.getcwd()))

from harness.load.session import register
from harness.load.shape import KneeShape
from harness.load.user import KneeUser

__all__ = ["KneeShape", "KneeUser"]

register("repeat", os.environ)
