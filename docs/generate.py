"""The pages of docs/ that are made by a program: configuration keys, command line, public names, tables of results.

python docs/generate.py            write them
python docs/generate.py --check    exit with 1, and name those that are out of date
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import inspect
import io
import json
import os
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ |= {"COLUMNS": "1000", "NO_COLOR": "1"}  # before the command line is loaded: help in long lines

from docs import result_tables
from docs.pages import DOCS, ROOT, filled, page, prose, table
from mcddpm import cli
from mcddpm.evaluation import Evaluation
from mcddpm.system import settings
from mcddpm.training import Config
from mcddpm.uncertainty import CalibrationSettings

# --- configuration keys ---------------------------------------------------------------------------------------------

COMMANDS: dict[str, tuple[type, str]] = {
    "train": (Config, "For example `configs/default.toml`."),
    "evaluate": (Evaluation, "For example `configs/brain-4x8x.toml`. Repeat `[[cases]]` and `[[methods]]` as needed."),
    "calibrate": (
        CalibrationSettings,
        "For example `configs/calibrate.toml`. `[cases]` are the slices to calibrate on; its `methods` has no effect.",
    ),
}
PLAIN = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def configuration() -> str:
    parts = [
        prose("""
        A configuration is a TOML file. Every key has a default, so a file states only what differs. A key that does not
        exist stops the command, and the message names similar ones. `--set section.key=value` changes one key from the
        command line. In a list of sections a number says which one: `--set methods.3.samples=8` (they count from 0).
        """)
    ]
    for command, (cls, what) in COMMANDS.items():
        parts += [f"## mcddpm {command}", what, *sections(cls(), "")]
    return page("Configuration keys", *parts)


def sections(usual: Any, where: str) -> list[str]:
    """The table of a section, and then those inside it. usual: the section with its defaults, as it stands in the
    section around it, which may have others than the class."""
    cls, rows, inside = type(usual), [], []
    hints = typing.get_type_hints(cls)
    for key in (f.name for f in dataclasses.fields(cls)):
        kind, value = hints[key], getattr(usual, key)
        inner = next(
            (k for k in (kind, *typing.get_args(kind)) if isinstance(k, type) and dataclasses.is_dataclass(k)), None
        )
        if inner is not None:
            own = value if inner is kind else next(iter(value), inner())  # of a list, the first; of none, the class's
            inside += sections(own, f"[{key}]" if inner is kind else f"[[{key}]]")
        else:
            default = json.dumps(settings.plain(value))
            rows.append([f"`{key}`", words(kind), f"`{default}`", meaning(cls, key)])
    made = table(["key", "type", "default", "meaning"], rows)
    title = f"### `{where}`" if where else "### At the top of the file"
    return [*([title, made] if rows else []), *inside]


def meaning(cls: type, key: str) -> str:
    """The docstring below a key in the code."""
    found = re.search(rf'^    {key}:[^\n]*\n    """(.*?)"""', inspect.getsource(cls), re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{cls.__name__}.{key} has no docstring below it: say what the key means")
    return cell(" ".join(found[1].split()))


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def words(kind: Any) -> str:
    """A type as a user knows it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin is tuple:
        return f"list of {words(inner[0])}s"
    if origin is dict:
        return f"section of {words(inner[1])}s"
    return PLAIN[kind]


# --- command line ---------------------------------------------------------------------------------------------------


def command_line() -> str:
    parts = [
        prose("""
        `mcddpm COMMAND --help` prints the same. A flag without a value also exists with `--no-`, which switches it off.

        The exit code is 0 if all was done, and 2 if something that was asked for is wrong (with a message of one line).
        It is 130 after Ctrl-C, and 143 if SIGTERM ended a training, which wrote a checkpoint first. Under `torchrun`
        the exit code is that of `torchrun`.
        """)
    ]
    for command in commands():
        lines = help_of(command)
        about = "\n".join(line for line in lines[1:] if line[:1] not in "╭│╰")
        parts += [f"## mcddpm {' '.join(command)}", prose(about)]
        flags = [flag(name, text) for name, text in entries(lines) if name != "-h, --help"]
        parts += [table(["flag", "meaning", "default"], flags)] if flags else []
    return page("Command line", *parts)


def commands(before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """All that can be run; of a group, what is in it."""
    inside = re.search(r"\{([\w,]+)\}$", help_of(before)[0])
    return [c for name in inside[1].split(",") for c in commands((*before, name))] if inside else [before]


@functools.cache
def help_of(command: tuple[str, ...]) -> list[str]:
    """What --help prints, with its boxes, which it draws where the output is UTF-8."""
    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8") as out:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            cli.main([*command, "--help"])
        out.seek(0)
        return [line.rstrip() for line in out.read().splitlines()]


def entries(lines: list[str]) -> list[tuple[str, str]]:
    """The names in the boxes of a help, and what is said of each."""
    found: list[tuple[str, str]] = []
    title = ""
    for line in lines:
        if line.startswith("╭"):
            title = line.strip("╭─╮ ")
        elif line.startswith("│"):
            inside = line.strip("│").rstrip()[1:]
            if inside.startswith("-") or (title.startswith("positional") and not inside.startswith(" ")):
                name, _, text = inside.partition("  ")
                found.append((name, text.strip()))
            elif inside.startswith("    ") and found:
                found[-1] = (found[-1][0], f"{found[-1][1]} {inside.strip()}".strip())
    return found


def flag(name: str, text: str) -> list[str]:
    """A row of the table: how it is written, what it means, what it is unless told."""
    shown = re.sub(r"\[\[(\w+) .*\]\]", r"\1 …", name).replace("{None}|", "").replace("{None,", "{")
    shown = f"`{shown.partition(', --no-')[0]}`" if shown.startswith("-") else f"`{shown}` (argument)"
    found = re.search(r"\s*\((default: (.*)|required|repeatable)\)$", text)
    if found is None:
        return [cell(shown), cell(text), ""]
    usual = found[1] if found[2] is None else "" if found[2] in ("", "None", "''") else f"`{found[2]}`"
    return [cell(shown), cell(text[: found.start()]), usual]


# --- public names ---------------------------------------------------------------------------------------------------

FOLDERS = {
    "physics": "How a scanner measures: operators, masks, coil maps, noise, measurements.",
    "simulation": "What magnitude images lack to be scans: phase, noise, coils; and scans as varied as real ones.",
    "diffusion": "The mathematics of the paper: schedules, noising, losses, samplers, a prior with a known posterior.",
    "data": "Files in and out, data sets by name, protocols, and training examples.",
    "models": "Networks, the denoiser around them, model cards, and weights on disk.",
    "training": "Settings of a training, and the run of it.",
    "reconstruction": "From a measurement, or a folder of scans, to samples, mean and std.",
    "uncertainty": "Calibration, intervals, and the self-check.",
    "evaluation": "Methods that are compared on the same slices: rows, tables and figures.",
    "viewer": "The viewer in a browser. `mcddpm view` starts it.",
    "system": "The machine, without any science: files, processes, seeds, progress, and folders that can be continued.",
}
# Names without a docstring, and those whose docstring lists fields instead of saying what the thing is.
IN_WORDS = {
    "__version__": "The version of the package.",
    "Measurement": "What was measured: y_M, the mask, the operator and the scale; the truth, where it is known.",
    "Reconstruction": "What came out: samples, their mean and std, and notices.",
    "Operator": "The members that every operator has. A class need not inherit from it.",
    "SAMPLERS": "All samplers, by name.",
    "GaussianPrior": "The prior x = mean + L z, whose posterior is known for every operator.",
    "GaussianPosterior": "The exact posterior of a Gaussian prior: its mean, its covariance, and its denoiser.",
    "Schedule": "The levels of noise at every t: alpha, beta, and all that follows from them.",
    "DATASETS": "The data sets that can be fetched by name.",
    "PROTOCOLS": "The ways to measure a slice of a file: `paper` and `fastmri`.",
    "Batch": "Training examples: both parts of each measurement, its mask and its scale.",
    "Result": "What is written of a scan: images, samples, and where they come from.",
    "Volume": "A scan in a file. Its slices are read when they are asked for.",
    "cases_of": "All slices that a `Cases` names, each with how it is measured.",
    "Cascade": "Several small U-Nets in a row, with data consistency between them.",
    "Denoiser": "A network, and what turns its output into a clean estimate of the unmeasured data.",
    "ModelCard": "What a model is: architecture, schedule, operator, scaling, training data, licence, sha256.",
    "UNet": "A U-Net: the authors' network, or ours.",
    "Config": "All settings of a training.",
    "Calibration": "What intervals are multiplied by, and what is usual for the self-check: a `calibration.json`.",
    "Checked": "The answer of a self-check: p-value, score, reason, and the number `overall` that intervals follow.",
    "Conformal": "The factors that std is multiplied by, and how they were fitted.",
    "Surprise": "What hidden lines say of a slice: statistics (`overall` and others), the image `surprise`, calls.",
    "Scores": "How right the error bars of one slice are: coverage, CRPS, spread and more.",
    "error_bars": "Intervals and the self-check, as `mcddpm reconstruct` asks for them.",
    "load_calibration": "The calibration of a model, or the one in a folder or file.",
    "KINDS": "The kinds of methods, by name.",
    "Method": "A method of a comparison, as a configuration describes it.",
    "Table": "A table with a title, as Markdown or LaTeX.",
    "evaluate": "Run a comparison, or continue it, and write its rows.",
    "read_csv": "Rows of an evaluation, from `rows.csv`.",
    "unet": "The image of a supervised U-Net, with or without the measured data put back.",
    "write_csv": "Rows of an evaluation, to `rows.csv`.",
    "write_tables": "The tables of an evaluation, to `tables.md` and `tables.tex`.",
    "zero_filled": "The zero-filled image of a measurement.",
    "Piece": "One piece of work that is done, kept under a name: arrays and notes.",
    "Quiet": "A `Progress` that says nothing.",
    "Workspace": "A folder of work that can be continued.",
}
# Options of mkdocstrings, below a module's page.
MORE = {"physics": "## masks\n\n::: mcddpm.physics.masks\n    options:\n      heading_level: 3"}


def api_of(folder: str) -> str:
    module = importlib.import_module(f"mcddpm.{folder}")
    told = f"The complete descriptions are the docstrings in `mcddpm/{folder}/`. The website shows them below."
    names = [public_names(module), prose(told)] if module.__all__ else ["It has no public names."]
    more = [MORE[folder]] if folder in MORE else []
    return page(f"mcddpm.{folder}", prose(FOLDERS[folder]), *names, f"::: mcddpm.{folder}", *more)


def api() -> str:
    told = """
        The names on these pages are public. All else in a folder is private to it and may change. `import mcddpm` gives
        the names that most programs need:
    """
    rows = [[f"[mcddpm.{folder}]({folder}.md)", sentence] for folder, sentence in FOLDERS.items()]
    shown = "::: mcddpm\n    options:\n      show_root_heading: false\n      show_submodules: false"
    module = importlib.import_module("mcddpm")
    return page(
        "Python API", prose(told), public_names(module), "## Folders", table(["page", "what it has"], rows), shown
    )


def public_names(module: ModuleType) -> str:
    return "\n".join(filled(f"- `{name}`: {sentence(module, name)}", "  ") for name in module.__all__)


def sentence(module: ModuleType, name: str) -> str:
    """What a public name is: the first sentence of its docstring, unless there are better words."""
    if name in IN_WORDS:
        return IN_WORDS[name]
    found = " ".join((inspect.getdoc(getattr(module, name)) or "").split("\n\n")[0].split())
    if not found or found.startswith(f"{name}("):  # a dataclass without a docstring has its fields
        raise ValueError(f"{module.__name__}.{name} has no docstring: write one, or put a sentence into IN_WORDS")
    first = re.split(r"(?<=[.?])(?<!Eq\.)(?<!\.\.)\s", found)[0]
    return first if first.endswith((".", "?")) else f"{first}."


# --- write, or check ------------------------------------------------------------------------------------------------

PAGES: dict[str, Callable[[], str]] = {
    "reference/configuration.md": configuration,
    "reference/command-line.md": command_line,
    "reference/api/index.md": api,
    **{f"reference/api/{folder}.md": functools.partial(api_of, folder) for folder in FOLDERS},
    "results/brain-4x8x.md": result_tables.brain,
    "results/other-masks.md": result_tables.other_masks,
    "results/contrasts.md": result_tables.contrasts,
    "results/selfcheck.md": result_tables.self_check,
    "results/lesions.md": result_tables.of_lesions,
    "results/unet-long.md": result_tables.unet_long,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args()
    new = {DOCS / path: make() for path, make in PAGES.items()}
    stale = [path for path, text in new.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if asked.check:
            print(f"{path.relative_to(ROOT)} is out of date: run python docs/generate.py")
        else:
            path.write_text(new[path])
            print(f"written: {path.relative_to(ROOT)}")
    return 1 if asked.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
