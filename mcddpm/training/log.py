"""What a run writes down as it goes: one JSON object a line, and TensorBoard where it is installed."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from mcddpm.system import files


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def forget_after(run: Path, step: int) -> None:
    """Drop what was logged after the checkpoint that the run goes on from, and lines torn by kill -9."""
    for name in ("log.jsonl", "speed.jsonl", "validation.jsonl"):
        path = run / name
        if not path.exists():
            continue
        lines = path.read_text().splitlines()
        kept = [line for line in lines if _step(line) <= step]
        if len(kept) < len(lines):
            files.write_text(path, "".join(f"{line}\n" for line in kept))


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return math.inf


class Tensorboard:
    """The same numbers for TensorBoard, where it is installed; what a resumed run replays is purged."""

    def __init__(self, run: Path, step: int) -> None:
        self.writer: Any = None
        with contextlib.suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(run / "tensorboard", purge_step=step)

    def add(self, values: dict[str, float], step: int) -> None:
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)
            self.writer.flush()
