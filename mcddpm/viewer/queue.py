"""Jobs of the viewer: one at a time, others wait. Each is a run of `mcddpm reconstruct` in a folder of its own, so that
a server that was killed goes on with it, and a page that was closed finds it again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from mcddpm.diffusion.samplers import Snapshot
from mcddpm.models.store import load_model
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction import batch
from mcddpm.reconstruction.inputs import Scan, Task
from mcddpm.reconstruction.sample import check
from mcddpm.system import files
from mcddpm.system.progress import Notice
from mcddpm.system.settings import from_dict, to_dict
from mcddpm.uncertainty.calibrated_bars import error_bars

SHOWN = 4  # samples in a preview
MOST = 100  # jobs that may wait
ENDED = ("done", "failed", "cancelled")


class Cancelled(Exception):
    """Raised inside a sampler, to leave it."""


class Full(ValueError):
    """Too many jobs, or no room to remember one."""


@dataclass
class Ticket:
    """A job. input: a path, out: a folder in the root; neither is told to the page. All of it is kept on disk."""

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
        return {key: value for key, value in asdict(self).items() if key not in ("input", "out", "task")}


def task_of(ticket: Ticket) -> Task:
    """What was asked. Older versions kept it otherwise, in tickets that may still be waiting."""
    if "plan" not in ticket.task:
        raise ValueError("this job was asked of another version of mcddpm: ask for it again")
    return from_dict(Task, ticket.task)


class Queue:
    """Tickets by id, and the thread that works on them. allowed: says whether a path may be an input."""

    def __init__(
        self, root: Path, device: str = "cpu", memory: str = "4GB", allowed: Callable[[Path], bool] = lambda _: True
    ) -> None:
        self.root, self.device, self.memory, self.allowed = root, device, memory, allowed
        self.tickets: dict[str, Ticket] = {}
        self.previews: dict[str, np.ndarray] = {}
        self.stopped: set[str] = set()
        self.changed = threading.Condition()
        self.closing = False
        self.thread: threading.Thread | None = None
        self.lock: IO[str] | None = None

    @property
    def folder(self) -> Path:
        return self.root / ".view"

    def start(self) -> None:
        """Take over what a server before this one left, unless it still runs, and begin."""
        if self.thread is not None:
            return
        self._lock()
        self._recover()
        self.thread = threading.Thread(target=self._work, name="reconstruct", daemon=True)
        self.thread.start()

    def _lock(self) -> None:
        """One server works in a folder at a time. A folder that cannot be written to is shown all the same."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = (self.folder / "lock").open("w")
        except OSError:
            return
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.lock.close()
            raise ValueError(
                f"another mcddpm view already works in {self.root}; look at its page, or end it"
            ) from error

    def close(self) -> None:
        """Stop between two steps; the job that runs is waiting again when the server comes back."""
        self.closing = True
        with self.changed:
            self.changed.notify_all()
        if self.thread is not None:
            self.thread.join(timeout=30)
        if self.lock is not None:
            self.lock.close()

    def add(self, name: str, source: Path, task: Task) -> Ticket:
        """A job for one input; its results go to a new folder."""
        ticket_id = uuid.uuid4().hex[:12]
        out = f"view-{time.strftime('%Y%m%d-%H%M%S')}-{ticket_id[:6]}"
        ticket = Ticket(ticket_id, name, str(source), out, to_dict(task))
        with self.changed:
            if sum(other.state not in ENDED for other in self.tickets.values()) >= MOST:
                raise Full(f"{MOST} jobs are waiting already")
            try:
                self._keep(ticket)
            except OSError as error:
                raise Full(f"a job cannot be kept in this folder: {error.strerror or error}") from error
            self.tickets[ticket_id] = ticket
            self.changed.notify_all()
        return ticket

    def listed(self) -> list[Ticket]:
        with self.changed:
            return sorted(self.tickets.values(), key=lambda ticket: -ticket.made)

    def cancel(self, ticket_id: str) -> Ticket:
        ticket = self.tickets[ticket_id]
        with self.changed:
            if ticket.state == "waiting":
                ticket.message = "cancelled before it began"
                self._end(ticket, "cancelled")
            elif ticket.state == "running":
                ticket.message = "cancelling"
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
                ticket.state, ticket.message, ticket.step, ticket.seconds_left = "running", "", 0, None
                with contextlib.suppress(OSError):
                    self._keep(ticket)
            self._run(ticket)

    def _run(self, ticket: Ticket) -> None:
        out, state = self.root / ticket.out, "failed"
        try:
            task = task_of(ticket)
            model = check(load_model(task.model, self.device), task.plan)
            (path,) = batch.reconstruct_scans(
                [ticket.input],
                out,
                task,
                model,
                error_bars(model, task.interval, task.self_check),
                memory=self.memory,
                progress=_IntoTicket(self, ticket),
                watch=self._watch(ticket, task),
            )
            ticket.result, state = path.relative_to(self.root).as_posix(), "done"
        except Cancelled:
            state = "cancelled" if ticket.id in self.stopped else "waiting"  # or the server is closing
            if state == "cancelled":
                ticket.message = "cancelled"
                shutil.rmtree(out, ignore_errors=True)
        except Exception as error:  # whatever a file leads to: the next job must still run
            ticket.message = self.plain(str(error) or type(error).__name__)
        with self.changed:
            self.previews.pop(ticket.id, None)
            self._end(ticket, state)

    def _end(self, ticket: Ticket, state: str) -> None:
        ticket.state = state
        with contextlib.suppress(OSError):
            self._keep(ticket)

    def plain(self, text: str) -> str:
        """Without the places of files on this machine."""
        return re.sub(r"(/[^\s/:;,']+)+/", "", text)

    def _watch(self, ticket: Ticket, task: Task) -> Callable[[Scan, int, Measurement, Snapshot], None]:
        began, samples = time.monotonic(), task.plan.samples
        batch = {"slice": -1, "drawn": 0, "last": 0}

        def watch(scan: Scan, index: int, measurement: Measurement, now: Snapshot) -> None:
            if self.closing or ticket.id in self.stopped:
                raise Cancelled
            if index != batch["slice"]:
                batch.update(slice=index, drawn=0)
            elif now.step <= batch["last"]:  # the next batch of the same slice
                batch["drawn"] += len(now.denoised)
            batch["last"] = now.step
            part = (batch["drawn"] + len(now.denoised) * now.step / now.steps) / max(samples, 1)
            ticket.step, ticket.steps = now.step, now.steps
            share = ticket.done + min(part, 1.0)
            ticket.seconds_left = (time.monotonic() - began) / share * max(ticket.slices - share, 0) if share else None
            images = measurement.operator.pinv(now.denoised[:SHOWN].cpu()).abs() / measurement.scale
            self.previews[ticket.id] = images.numpy().astype(np.float32)

        return watch

    # --- on disk ---

    def _keep(self, ticket: Ticket) -> None:
        files.write_json(self.folder / f"{ticket.id}.json", asdict(ticket))

    def _recover(self) -> None:
        """Jobs of a server that was there before: what it was working on waits again, and goes on where it was.

        The folder may come from someone else: a ticket is taken only if it stays within the folder, and reads from it,
        or from where this user's uploads go.
        """
        tickets = []
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(ValueError, TypeError, OSError):
                ticket = from_dict(Ticket, json.loads(path.read_text()))
                own = re.fullmatch(r"[0-9a-f]{12}", ticket.id) and path.stem == ticket.id
                if own and re.fullmatch(r"view-[0-9-]+-[0-9a-f]{6}", ticket.out) and self.allowed(Path(ticket.input)):
                    tickets.append(ticket)
        for ticket in sorted(tickets, key=lambda ticket: ticket.made):
            if ticket.state == "running":
                ticket.state, ticket.message = "waiting", "the server was stopped; going on"
            self.tickets[ticket.id] = ticket


@dataclass
class _IntoTicket:
    """How a reconstruction goes, into its ticket."""

    queue: Queue
    ticket: Ticket

    def at(self, done: float, total: float, what: str = "") -> None:
        self.ticket.done, self.ticket.slices, self.ticket.step = int(done), int(total), 0

    def say(self, notice: Notice) -> None:
        if notice.kind != "written":
            self.ticket.message = self.queue.plain(notice.line)
