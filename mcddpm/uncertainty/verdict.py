"""What a self-check says of a slice and of a scan, as results keep it; and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mcddpm.system.progress import Notice, note, warning
from mcddpm.uncertainty import selfcheck
from mcddpm.uncertainty.selfcheck import ALARM, Checked

Json = Mapping[str, Any]


@dataclass(frozen=True)
class SliceVerdict:
    """Of one slice; statistics: those of the self-check, by name."""

    slice: int
    p: float
    score: float
    reason: str
    calls: int
    statistics: Mapping[str, float]

    @property
    def flagged(self) -> bool:
        return self.p <= ALARM

    @classmethod
    def read(cls, slice: int, kept: Json) -> SliceVerdict:
        """From what `kept_of` made."""
        fields = {name: kept[name] for name in ("p", "score", "reason", "calls")}
        return cls(slice, **fields, statistics={name: value for name, value in kept.items() if name not in fields})

    @property
    def json(self) -> Json:
        values = {"p": self.p, "score": self.score, "reason": self.reason, "calls": self.calls}
        return {**values, **self.statistics, "slice": self.slice, "flagged": self.flagged}


def kept_of(checked: Checked) -> Json:
    """What is kept of a slice's self-check until its scan is done."""
    values = {"p": checked.p, "score": checked.score, "reason": checked.reason, "calls": checked.surprise.calls}
    return values | checked.surprise.statistics


@dataclass(frozen=True)
class ScanVerdict:
    """Of a scan with so many slices that hold something (`of`). p: None if no slice could be checked; score: the median
    of theirs; empty: numbers of slices that hold nothing."""

    p: float | None
    score: float | None
    slices: tuple[SliceVerdict, ...]
    of: int
    empty: tuple[int, ...] = ()

    @classmethod
    def of_slices(cls, slices: Sequence[SliceVerdict], of: int, empty: Sequence[int]) -> ScanVerdict:
        p = selfcheck.of_scan([one.p for one in slices]) if slices else None
        score = float(np.median([one.score for one in slices])) if slices else None
        return cls(p, score, tuple(slices), of, tuple(empty))

    @property
    def flagged(self) -> bool:
        return self.p is not None and self.p <= ALARM

    @property
    def calls(self) -> int:
        return sum(one.calls for one in self.slices)

    @property
    def unusual(self) -> list[int]:
        return [one.slice for one in self.slices if one.flagged]

    @property
    def json(self) -> Json:
        values = {"p": self.p, "score": self.score, "flagged": self.flagged, "calls": self.calls}
        counts = {"checked": len(self.slices), "of": self.of}
        return {**values, **counts, "slices": [one.json for one in self.slices], "empty": list(self.empty)}

    def comments(self, slices: int) -> dict[int, str]:
        """What there is against each slice."""
        if self.flagged:
            return dict.fromkeys(range(slices), "self-check: the model does not understand this scan")
        comments = {index: "not self-checked" for index in range(slices) if index not in self.empty}
        unusual = {one.slice: f"self-check: an unusual slice, p = {one.p:.3f}" for one in self.slices if one.flagged}
        return comments | dict.fromkeys((one.slice for one in self.slices), "") | unusual

    def notice(self, name: str) -> Notice:
        if self.p is None:
            return warning(f"{name} could not be self-checked, so do not rely on its error bars")
        message = f"self-check of {name}: p = {self.p:.3f} ({self.calls} extra network calls)"
        message += f", on {len(self.slices)} of {self.of} slices" if len(self.slices) < self.of else ""
        if self.flagged:
            reasons = Counter(one.reason for one in self.slices if one.flagged)
            why = f" (most often by {reasons.most_common(1)[0][0]})" if reasons else ""
            message += f": the model does not understand this scan{why}; do not trust its error bars"
        if self.unusual:
            chance = f"among those of calibration, some {ALARM * len(self.slices):.1f}"
            message += f"; unusual slices: {', '.join(map(str, self.unusual))} ({chance})"
        return warning(message) if self.flagged else note(message)


@dataclass(frozen=True)
class Summary:
    """The last line of a run, of a scan's `ScanVerdict.json`."""

    flagged: bool
    p: float | None
    unusual: tuple[int, ...]

    @classmethod
    def read(cls, json: Json) -> Summary:
        return cls(json["flagged"], json["p"], tuple(one["slice"] for one in json["slices"] if one["flagged"]))


def summary(checks: Mapping[str, Summary], open_: int) -> Notice:
    """Which scans the model does not understand, which hold slices that it does not, which could not be checked; and
    how many are not finished."""
    flagged = [name for name, check in checks.items() if check.flagged]
    unsure = [name for name, check in checks.items() if check.p is None]
    some = {name: check.unusual for name, check in checks.items() if check.unusual and not check.flagged}
    message = f"self-check: {len(flagged)} of {len(checks)} scans are not understood by the model"
    message += f": {', '.join(flagged)}" if flagged else ""
    message += f"; {open_} more are not finished" if open_ else ""
    message += f"; not checked (the log says why): {', '.join(unsure)}" if unsure else ""
    slices = (f"{name} ({', '.join(map(str, places))})" for name, places in some.items())
    return note(message + (f"; unusual slices in {', '.join(slices)}" if some else ""))
