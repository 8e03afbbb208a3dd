"""Looks at the even plans of a chain, and dies of others."""

from __future__ import annotations

import os

import numpy as np

from mcfuser.space.plan import Floats
from mcfuser.tune.listers import LeastRequest


def answer(request: LeastRequest) -> list[Floats]:
    if any(i % 2 for i in request.plans):
        os._exit(1)
    return [np.array([float(i), os.getpid()]) for i in request.plans]
