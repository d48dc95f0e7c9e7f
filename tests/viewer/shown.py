"""The page of a folder, answered in this process, and how tests talk to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient

from mcddpm.viewer import queue
from mcddpm.viewer.app import make_app

HERE = "http://127.0.0.1"
UPLOADS = 2_000_000
QUICK = {"samples": 2, "steps": 2, "sampler": "dpmpp_2m_sde"}
WISH = {"input": "full.h5", "mask": "random_columns", **QUICK}


def served(root: Path, model: Path | str = "default", **more: Any) -> TestClient:
    """The page of a folder, once it is entered."""
    app = make_app(root, model=str(model), **{"upload_limit": UPLOADS, **more})
    return TestClient(app, base_url=HERE)


def image(answer: Any) -> np.ndarray:
    low, high = float(answer.headers["x-low"]), float(answer.headers["x-high"])
    shape = [int(n) for n in answer.headers["x-shape"].split(",")]
    return low + np.frombuffer(answer.content, "<u2").reshape(shape) * (high - low) / 65535


def finished(client: Any, job: str, seconds: float = 60) -> dict[str, Any]:
    """What is told of a job when it has ended. client: whatever can `get`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        told: dict[str, Any] = client.get(f"/api/jobs/{job}").json()
        if told["state"] in queue.ENDED:
            return told
        time.sleep(0.02)
    raise AssertionError(told)
