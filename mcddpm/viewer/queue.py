"""Jobs of the viewer: one at a time, others wait. Each is a run of `mcddpm reconstruct` in a folder of its own, so that
a server that was killed goes on with it, and a page that was closed finds it again."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mcddpm import jobs, runtime
from mcddpm.datasets import Measurement
from mcddpm.samplers import Progress
from mcddpm.scans import Scan, Task

SHOWN = 4  # samples in a preview
ENDED = ("done", "failed", "cancelled")


class Cancelled(Exception):
    """Raised inside a sampler, to leave it."""


@dataclass
class Ticket:
    """A job. What is kept on disk is all but the preview."""

    id: str
    name: str
    input: str
    out: str
    task: dict[str, Any]
    state: str = "waiting"
    message: str = ""
    slices: int = 0
    done: int = 0
    step: int = 0
    steps: int = 0
    seconds_left: float | None = None
    result: str = ""
    made: float = field(default_factory=time.time)

    def describe(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key not in ("input", "out")}


class Queue:
    """Tickets by id, and the thread that works on them."""

    def __init__(self, root: Path, device: str = "cpu", memory: str = "4GB") -> None:
        self.root, self.device, self.memory = root, device, memory
        self.tickets: dict[str, Ticket] = {}
        self.previews: dict[str, np.ndarray] = {}
        self.stopped: set[str] = set()
        self.changed = threading.Condition()
        self.closing = False
        self.thread: threading.Thread | None = None
        self._recover()

    @property
    def folder(self) -> Path:
        return self.root / ".view"

    def start(self) -> None:
        self.thread = threading.Thread(target=self._work, name="reconstruct", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Stop between two steps; the job that runs is waiting again when the server comes back."""
        self.closing = True
        with self.changed:
            self.changed.notify_all()
        if self.thread is not None:
            self.thread.join(timeout=30)

    def add(self, name: str, source: Path, task: Task) -> Ticket:
        """A job for one input; its results go to a new folder."""
        ticket_id = uuid.uuid4().hex[:12]
        out = self.root / f"view-{time.strftime('%Y%m%d-%H%M%S')}-{ticket_id[:4]}"
        settings = asdict(task) | {"formats": list(task.formats), "snr": str(task.snr)}
        ticket = Ticket(ticket_id, name, str(source), str(out), settings)
        with self.changed:
            self.tickets[ticket_id] = ticket
            self._keep(ticket)
            self.changed.notify_all()
        return ticket

    def cancel(self, ticket_id: str) -> Ticket:
        ticket = self.tickets[ticket_id]
        with self.changed:
            if ticket.state == "waiting":
                ticket.state, ticket.message = "cancelled", "cancelled before it began"
                self._keep(ticket)
            elif ticket.state == "running":
                self.stopped.add(ticket_id)
        return ticket

    # --- the thread ---

    def _work(self) -> None:
        while not self.closing:
            with self.changed:
                ticket = next((t for t in self.tickets.values() if t.state == "waiting"), None)
                if ticket is None:
                    self.changed.wait(timeout=1.0)
                    continue
                ticket.state, ticket.message = "running", ""
                self._keep(ticket)
            self._run(ticket)

    def _run(self, ticket: Ticket) -> None:
        out = Path(ticket.out)
        try:
            settings = ticket.task | {"formats": tuple(ticket.task["formats"]), "snr": float(ticket.task["snr"])}
            (path,) = jobs.reconstruct_scans(
                [ticket.input],
                out,
                Task(**settings),
                memory=self.memory,
                device=self.device,
                report=_Report(self, ticket),
                watch=self._watch(ticket),
            )
            ticket.result = path.relative_to(self.root).as_posix()
            ticket.state = "done"
        except Cancelled:
            if ticket.id in self.stopped:
                ticket.state, ticket.message = "cancelled", "cancelled"
                shutil.rmtree(out, ignore_errors=True)
            else:  # the server is closing
                ticket.state = "waiting"
        except (ValueError, OSError, RuntimeError) as error:
            ticket.state, ticket.message = "failed", str(error)
        finally:
            self.previews.pop(ticket.id, None)
            self._keep(ticket)

    def _watch(self, ticket: Ticket) -> Callable[[Scan, int, Measurement, Progress], None]:
        began = time.monotonic()

        def watch(scan: Scan, index: int, measurement: Measurement, progress: Progress) -> None:
            if self.closing or ticket.id in self.stopped:
                raise Cancelled
            ticket.step, ticket.steps = progress.step, progress.steps
            share = ticket.done + progress.step / progress.steps
            ticket.seconds_left = (time.monotonic() - began) / share * (ticket.slices - share) if share > 0 else None
            images = measurement.operator.pinv(progress.denoised[:SHOWN].cpu()).abs() / measurement.scale
            self.previews[ticket.id] = torch.as_tensor(images).numpy().astype(np.float32)

        return watch

    # --- on disk ---

    def _keep(self, ticket: Ticket) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError), runtime.whole(self.folder / f"{ticket.id}.json") as part:
            part.write_text(json.dumps(asdict(ticket), indent=1) + "\n")

    def _recover(self) -> None:
        """Jobs of a server that was there before: what it was working on waits again, and goes on where it was."""
        found = []
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(ValueError, TypeError, OSError):
                found.append(Ticket(**json.loads(path.read_text())))
        for ticket in sorted(found, key=lambda ticket: ticket.made):
            if ticket.state == "running":
                ticket.state, ticket.message = "waiting", "the server was stopped; going on"
            self.tickets[ticket.id] = ticket


@dataclass
class _Report:
    """What `reconstruct_scans` tells, into the ticket."""

    queue: Queue
    ticket: Ticket

    def start(self, slices: int) -> None:
        self.ticket.slices, self.ticket.done = slices, 0

    def slice(self, name: str) -> None:
        self.ticket.done += 1

    def say(self, text: str) -> None:
        if not text.startswith("written:"):
            self.ticket.message = text
