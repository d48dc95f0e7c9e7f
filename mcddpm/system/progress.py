"""What a person is told while work goes on, and of what comes out: one protocol for everything that takes long.

Only the first process speaks. `rich` is loaded when there is something to show.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from mcddpm.system import processes

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Notice:
    """What a person should know of a result, or of a run. kind: a word that programs can go by."""

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def line(self) -> str:
        """As a person reads it in a log."""
        return f"warning: {self.text}" if self.kind == "warning" else self.text


def note(text: str) -> Notice:
    return Notice("note", text)


def warning(text: str) -> Notice:
    return Notice("warning", text)


class Progress(Protocol):
    """Who is told how it goes: so many of so many pieces are done (the present one is `what`), and notices."""

    def at(self, done: float, total: float, what: str = "") -> None: ...
    def say(self, notice: Notice) -> None: ...


class Once:
    """Says each kind of notice once for each place, not for every slice."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.told = progress, set[tuple[str, str]]()

    def say(self, place: str, slice_: str, notices: Iterable[Notice]) -> None:
        """slice_: what the line begins with."""
        for notice in notices:
            if (place, notice.kind) not in self.told:
                self.told.add((place, notice.kind))
                self.progress.say(warning(f"{slice_}: {notice.text}"))


class Quiet:
    """Nobody."""

    def at(self, done: float, total: float, what: str = "") -> None: ...
    def say(self, notice: Notice) -> None: ...


@lru_cache(maxsize=1)
def console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def say(text: object, where: Console | None = None) -> None:
    """One line to the person, from the first process only; file names may hold brackets, so no markup."""
    if processes.rank() == 0:
        line = text.line if isinstance(text, Notice) else str(text)
        (where or console()).print(line, markup=False, soft_wrap=True)


class Bar:
    """A bar with time left, shown from the first piece on: before it, mistakes are told."""

    def __init__(self, what: str = "slice", *, bytes_: bool = False) -> None:
        from rich import progress as rich

        amount = rich.DownloadColumn() if bytes_ else rich.MofNCompleteColumn()
        columns = (rich.TextColumn(what), amount, rich.BarColumn(), rich.TimeRemainingColumn())
        more = rich.TextColumn("{task.description}", markup=False)
        self.progress = rich.Progress(*columns, more, console=console(), disable=processes.rank() > 0)
        self.task: Any = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.task is not None:  # otherwise nothing was shown, and it would leave an empty line
            self.progress.stop()

    def at(self, done: float, total: float, what: str = "") -> None:
        if self.task is None:
            self.progress.start()
            self.task = self.progress.add_task("", total=total)
        self.progress.update(self.task, completed=done, total=total, description=what)

    def say(self, notice: Notice) -> None:
        say(notice, self.progress.console)
