"""What a run writes down as it goes: one JSON object a line, and TensorBoard where it is installed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def forget_after(run: Path, step: int) -> None:
    """Forget what was logged after the checkpoint that the run goes on from."""
    for name in ("log.jsonl", "speed.jsonl", "validation.jsonl"):
        path = run / name
        if not path.exists():
            continue
        kept = []
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # a line torn by kill -9
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
        path.write_text("".join(kept))


def tensorboard(run: Path, values: dict[str, float], step: int) -> None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return
    with SummaryWriter(run / "tensorboard") as writer:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
