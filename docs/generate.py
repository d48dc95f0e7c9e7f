"""The pages of docs/ that are made by a program: configuration keys, command line, and tables of results.

python docs/generate.py            write them
python docs/generate.py --check    exit with 1, and name those that are out of date
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import functools
import inspect
import io
import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))
os.environ |= {"COLUMNS": "1000", "NO_COLOR": "1"}  # before the command line is loaded: help in long lines

from benchmarks import lesions, selfcheck  # noqa: E402
from mcddpm import cli  # noqa: E402
from mcddpm.evaluation import Evaluation, Table, results, tables  # noqa: E402
from mcddpm.system import settings  # noqa: E402
from mcddpm.training import Config  # noqa: E402
from mcddpm.uncertainty import CalibrationSettings  # noqa: E402

MADE = "<!-- Made by `python docs/generate.py`. Do not edit it by hand. -->"
OURS = "MC-DDPM, mean of 20"


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", MADE, *(part.strip("\n") for part in parts)]) + "\n"


def prose(text: str) -> str:
    """Paragraphs in lines of at most 120 characters; code in backticks is not broken."""
    paragraphs = []
    for paragraph in textwrap.dedent(text).strip().split("\n\n"):
        whole = re.sub(r"`[^`]*`", lambda found: found[0].replace(" ", "\0"), " ".join(paragraph.split()))
        paragraphs.append(textwrap.fill(whole, 120, break_long_words=False, break_on_hyphens=False).replace("\0", " "))
    return "\n\n".join(paragraphs)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


# --- configuration keys ---------------------------------------------------------------------------------------------

COMMANDS: dict[str, tuple[type, str]] = {
    "train": (Config, "For example `configs/default.toml`."),
    "evaluate": (Evaluation, "For example `configs/brain-4x8x.toml`. Repeat `[[cases]]` and `[[methods]]` as needed."),
    "calibrate": (
        CalibrationSettings,
        "For example `configs/calibrate.toml`. `[cases]` are the slices to calibrate on.",
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
        parts += [f"## mcddpm {command}", what, *sections(cls, "")]
    return page("Configuration keys", *parts)


def sections(cls: type, where: str) -> list[str]:
    """The table of a section, and then those inside it."""
    rows, inside, hints, usual = [], [], typing.get_type_hints(cls), cls()
    for key in (f.name for f in dataclasses.fields(cls)):
        kind = hints[key]
        inner = next((k for k in (kind, *typing.get_args(kind)) if dataclasses.is_dataclass(k)), None)
        if inner is not None:
            inside += sections(inner, f"[{key}]" if inner is kind else f"[[{key}]]")
        else:
            default = json.dumps(settings.plain(getattr(usual, key)))
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
        The exit code is 0 if all was done, 2 if something that was asked for is wrong (with a message of one line), and
        128 + n if signal n ended the command after it saved its state.
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


# --- results --------------------------------------------------------------------------------------------------------

Make = Callable[[results.Results], Table]


def of_evaluation(name: str, wanted: Sequence[tuple[str, Make]]) -> list[str]:
    """Tables of an evaluation, made of docs/results/NAME.csv, each under its heading. (One by one: `write_tables` also
    makes those of volumes, which need the images.)"""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(DOCS / "results" / f"{name}.csv", Path(folder) / "rows.csv")
        found = results.Results(Path(folder))
        return [f"## {title}\n\n{make(found).markdown()}" for title, make in wanted]


def drawn(found: results.Results, method: str = "") -> list[results.Key]:
    """What draws several samples."""
    return [key for key in found.runs() if found.of(key)[0].scores and method in ("", key[1])]


def coverage(region: Any, method: str = OURS) -> Make:
    return lambda found: tables.interval_table(found, drawn(found, method), region)


def at_90(found: results.Results) -> Table:
    """Coverage of 90 % intervals, of all methods that draw samples."""
    made = tables.interval_table(found, drawn(found), "foreground")
    return dataclasses.replace(made, rows=[row for row in made.rows if row[3] == "90 %"])


def spread(region: Any) -> Make:
    return lambda found: tables.spread_table(found, drawn(found), region)


QUALITY = ("Quality", lambda found: tables.quality_table(found, "slices"))
COVERAGE = [("Coverage, foreground", coverage("foreground")), ("Coverage, whole image", coverage("whole"))]


def brain() -> str:
    study = settings.load(Evaluation, ROOT / "configs" / "brain-4x8x.toml")
    told = """
        Rows: [brain-4x8x.csv](brain-4x8x.csv), written by `mcddpm evaluate configs/brain-4x8x.toml`. What the columns
        mean: [Compare methods](../how-to/compare-methods.md#read-the-tables). Remarks, and the tables of volumes: [How
        the numbers were made](protocols.md).
    """
    wanted = [
        QUALITY,
        ("Differences, slice by slice", lambda found: tables.paired_table(found, study.reference, OURS)),
        *COVERAGE,
        ("Coverage of 90 % intervals, other methods", at_90),
        ("Spread, foreground", spread("foreground")),
        ("Spread, whole image", spread("whole")),
    ]
    return page("Test person: complete tables", prose(told), *of_evaluation("brain-4x8x", wanted))


def other_masks() -> str:
    told = """
        Rows: [other-masks.csv](other-masks.csv). Their command, and remarks: [Measured
        otherwise](protocols.md#measured-otherwise).
    """
    made = of_evaluation("other-masks", [QUALITY, *COVERAGE])
    return page("Test person, other masks, phase and noise", prose(told), *made)


def contrasts() -> str:
    told = """
        Rows: [contrasts.csv](contrasts.csv), written by `mcddpm evaluate configs/contrasts.toml`. Remarks:
        [New person](protocols.md#remarks-on-the-new-person-and-other-contrasts).
    """
    made = of_evaluation("contrasts", [QUALITY, *COVERAGE])
    return page("A new person, and other contrasts", prose(told), *made)


def rows_of(name: str) -> list[dict[str, str]]:
    with (DOCS / "results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def self_check() -> str:
    told = """
        Rows: [selfcheck-4x.csv](selfcheck-4x.csv), [selfcheck-8x.csv](selfcheck-8x.csv). They were written by `python
        benchmarks/selfcheck.py --count 10`. What the kinds of scans are, and remarks: [How the numbers were
        made](protocols.md#remarks-on-the-self-check).
    """
    head = ["", "area under the ROC curve", "against its control", "flagged at p ≤ 0.05", "seen by"]
    parts = [prose(told)]
    for acceleration in (4, 8):
        rows = rows_of(f"selfcheck-{acceleration}x.csv")
        kinds = dict.fromkeys(row["kind"] for row in rows)
        lines = [selfcheck.line(rows, kind, acceleration) for kind in kinds]
        parts += [f"## {acceleration}x", "\n".join([table(head, []), *lines])]
    return page("The self-check: complete table", *parts)


def of_lesions() -> str:
    told = """
        Rows: [lesions.csv](lesions.csv), written by `python benchmarks/lesions.py`. Remarks:
        [Lesions](protocols.md#remarks-on-lesions).
    """
    head = ["", "error of zero-filled, %", "of the mean, %", "std, %", "std / error"]
    head += ["coverage of 90 %, as drawn, %", "calibrated, %", "with self-check, %"]
    return page(
        "Lesions: complete table", prose(told), "\n".join([table(head, []), *lesions.table(rows_of("lesions.csv"))])
    )


def unet_long() -> str:
    rows = [json.loads(line) for line in (DOCS / "results" / "unet-long.jsonl").read_text().splitlines()]
    told = """
        Rows: [unet-long.jsonl](unet-long.jsonl), the `validation.jsonl` of the run of `mcddpm train configs/unet.toml
        --set training.steps=13200 --set network.dropout=0.2 --set training.precision=bfloat16`. PSNR in dB (slice
        range) on 16 validation slices. Remarks: [What the baselines were given](protocols.md#u-net).
    """
    lines = [[f"{row['step']}", f"{row['zero_filled']:.2f}", f"{row['image']:.2f}"] for row in rows]
    return page("A longer training of the U-Net", prose(told), table(["step", "zero-filled", "U-Net"], lines))


# --- write, or check ------------------------------------------------------------------------------------------------

PAGES: dict[str, Callable[[], str]] = {
    "reference/configuration.md": configuration,
    "reference/command-line.md": command_line,
    "results/brain-4x8x.md": brain,
    "results/other-masks.md": other_masks,
    "results/contrasts.md": contrasts,
    "results/selfcheck.md": self_check,
    "results/lesions.md": of_lesions,
    "results/unet-long.md": unet_long,
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
