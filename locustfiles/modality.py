"""Text only, one image, several images at one output length: which of them costs.

locust -f locustfiles/modality.py --profile profiles/steps.yaml --headless
"""

import os

from harness.load.session import register
from harness.load.shape import KneeShape
from harness.load.user import KneeUser

__all__ = ["KneeShape", "KneeUser"]

register("modality", os.environ)
