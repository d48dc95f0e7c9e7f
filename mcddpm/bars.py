"""What a person sees while it works: one line at a time, and bars with time left. Only the first process speaks."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from mcddpm import runtime

console = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """One line to the person, from the first process only; file names may hold brackets, so no markup."""
    if runtime.rank() == 0:
        console.print(text, markup=False, soft_wrap=True)


class ProgressLine:
    """A bar with step, loss, images a second and time left."""

    def __init__(self) -> None:
        self.progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:.1f} images/s  left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task: TaskID | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, soft_wrap=True)

    def step(self, step: int, steps: int, loss: float, images_per_second: float) -> None:
        if self.task is None:  # shown from the first step on: before it, mistakes are told
            self.progress.start()
            self.task = self.progress.add_task("", total=steps, loss=loss, speed=images_per_second)
        self.progress.update(self.task, completed=step, total=steps, loss=loss, speed=images_per_second)


class SliceBar:
    """A bar over slices, with time left. Each process has its own; the first one's is shown."""

    def __init__(self, what: str = "slice") -> None:
        columns = (
            TextColumn(what),
            MofNCompleteColumn(),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        self.progress = Progress(*columns, console=console, disable=runtime.rank() > 0)
        self.task: TaskID | None = None

    def __enter__(self) -> SliceBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def start(self, slices: int) -> None:
        self.progress.start()
        self.task = self.progress.add_task("", total=slices)

    def progressed(self, done: int, total: int) -> None:
        if self.task is None:
            self.start(total)
        assert self.task is not None
        self.progress.update(self.task, completed=done, total=total)

    def slice(self, name: str) -> None:
        assert self.task is not None
        self.progress.update(self.task, advance=1, description=name.replace("[", r"\["))

    def say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, soft_wrap=True)
