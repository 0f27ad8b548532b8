"""Unique input against repeated input: what the caches save.

locust -f locustfiles/cache.py --profile profiles/steps.yaml --headless
"""

import os

from harness.load.session import register
from harness.load.shape import KneeShape
from harness.load.user import KneeUser

__all__ = ["KneeShape", "KneeUser"]

register("cache", os.environ)
