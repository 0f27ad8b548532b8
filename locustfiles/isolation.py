"""Short requests alone, then beside long ones: whether they need a queue of their own.

locust -f locustfiles/isolation.py --profile profiles/steps.yaml --headless
"""

import os
import sys

# Locust puts the working folder first: a package `harness` that happens to lie there is not this one.
sys.path.sort(key=lambda place: place in ("", os.getcwd()))

from harness.load.session import register
from harness.load.shape import KneeShape
from harness.load.user import KneeUser

__all__ = ["KneeShape", "KneeUser"]

register("isolation", os.environ)
