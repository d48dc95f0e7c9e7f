"""The tables of docs/results, made of the rows beside them."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import lesions, selfcheck
from docs.pages import DOCS, ROOT, page, prose, table
from mcddpm.evaluation import Evaluation, Table, results, tables
from mcddpm.system import settings

OURS = "MC-DDPM, mean of 20"

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
        Rows: [other-masks.csv](other-masks.csv). Their command, and remarks: [Other masks, phase and
        noise](protocols.md#other-masks-phase-and-noise).
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
