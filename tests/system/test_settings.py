"""Settings: TOML and flags in, mistakes named, and the same values back."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from mcddpm.system.settings import changes, check_choice, differences, from_dict, load, plain, to_dict


@dataclass(frozen=True)
class Mask:
    families: tuple[str, ...] = ("random_columns",)
    accelerations: tuple[float, ...] = (4.0, 8.0)


@dataclass(frozen=True)
class Training:
    steps: int = 10
    lr: float = 1e-3
    amsgrad: bool = False
    optimiser: Literal["adamw", "muon"] = "adamw"


@dataclass(frozen=True)
class Run:
    training: Training = field(default_factory=Training)
    mask: Mask = field(default_factory=Mask)
    name: str = ""
    spectrum: Mask | None = None


@dataclass(frozen=True)
class Usual:
    acceleration: float
    statistics: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Table:
    factors: dict[float, tuple[float, ...]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    methods: tuple[Training, ...] = ()


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_file_and_flags(tmp_path: Path) -> None:
    path = write(tmp_path, "[training]\nlr = 1\nsteps = 5\n[mask]\naccelerations = [4, 6.5]\n")
    run = load(
        Run, path, ("training.steps=7", "name=a b.npy", "mask.families=['radial', 'x']", "training.amsgrad=true")
    )
    assert run.training.lr == 1.0 and isinstance(run.training.lr, float)
    assert run.training.steps == 7 and run.training.amsgrad and run.mask.accelerations == (4.0, 6.5)
    assert run.name == "a b.npy" and run.mask.families == ("radial", "x")
    assert run.training.optimiser == Run().training.optimiser
    assert load(Run, path, ("mask.accelerations=4", "mask.families=radial")).mask == Mask(("radial",), (4.0,))


def test_round_trip() -> None:
    run = from_dict(Run, {"training": {"lr": 0.5}, "mask": {"families": ["radial"]}, "spectrum": {"families": []}})
    assert from_dict(Run, to_dict(run)) == run == from_dict(Run, json.loads(json.dumps(to_dict(run))))
    assert run.spectrum == Mask(()) and from_dict(Run, to_dict(Run())).spectrum is None


def test_infinity_and_keys_that_are_numbers_come_back_from_json() -> None:
    run = Run(Training(lr=math.inf), Mask(accelerations=(-math.inf, 4.0)))
    assert from_dict(Run, json.loads(json.dumps(to_dict(run), allow_nan=False))) == run
    nan = from_dict(Run, json.loads(json.dumps(to_dict(Run(Training(lr=math.nan))), allow_nan=False)))
    assert math.isnan(nan.training.lr)
    table = Table({0.5: (1.0,), 0.9: (2.0, 3.0)}, {4: 8})
    assert from_dict(Table, json.loads(json.dumps(to_dict(table)))) == table


def test_differences() -> None:
    a, b = to_dict(Run()), to_dict(from_dict(Run, {"training": {"steps": 3}, "name": "x"}))
    assert differences(a, b) == {"training.steps": (10, 3), "name": ("", "x")}
    assert differences({"a": {"b": 1}}, {"a": {"c": 1}}, "top.") == {"top.a.b": (1, None), "top.a.c": (None, 1)}
    assert differences(a, a) == {}


def test_changes_are_what_is_not_at_its_default() -> None:
    assert changes(Run()) == {}
    run = from_dict(Run, {"training": {"steps": 3}, "name": "x"})
    assert changes(run) == {"training": to_dict(run)["training"], "name": "x"}
    assert changes(run, but=("training",)) == {"name": "x"}


def test_plain_values_are_those_of_json() -> None:
    given = {"a": (1, [2.5, None]), "b": Path("x/y"), "c": {"d": math.inf, "e": -math.inf, "f": True}}
    expected = {"a": [1, [2.5, None]], "b": "x/y", "c": {"d": "inf", "e": "-inf", "f": True}}
    assert plain(given) == expected and str(plain(math.nan)) == "nan"
    with pytest.raises(TypeError):
        plain({"a": object()})


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("[mask]\naccelaration = 4", (), "unknown key mask.accelaration; did you mean accelerations.* known: accelera"),
        ("[trainig]\nlr = 1", (), "unknown key trainig; did you mean training"),
        ("zzz = 1", (), "unknown key zzz; known: mask, name, spectrum, training"),
        ("[training]\nlr = 'fast'", (), "training.lr is 'fast', expected a number"),
        ("[training]\nlr = true", (), "training.lr is True, expected a number"),
        ("[training]\nsteps = 1.5", (), "training.steps is 1.5, expected a whole number"),
        ("[training]\nsteps = true", (), "training.steps is True, expected a whole number"),
        ("[training]\namsgrad = 1", (), "training.amsgrad is 1, expected true or false"),
        ("name = 3", (), "name is 3, expected text"),
        ("[mask]\naccelerations = ['x']", (), "mask.accelerations is 'x', expected a number"),
        ("[training]\noptimiser = 'sgd'", (), "training.optimiser is 'sgd', expected one of: adamw, muon"),
        ("[training]\noptimiser = 3", (), "training.optimiser is 3, expected one of: adamw, muon"),
        ("[spectrum]\nfamily = 'x'", (), "unknown key spectrum.family; did you mean families"),
        ("training = 3", (), "training is 3, expected a section of keys"),
        ("[training", (), "run.toml is not valid TOML"),
        ("", ("training.lr",), "--set 'training.lr' is not of the form section.key=value"),
        ("", ("training.=1",), "is not of the form section.key=value"),
        ("", ("training.lrr=1",), "unknown key training.lrr; did you mean lr"),
        ("mask = 3", ("mask.families=x",), "mask is a value, not a section"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(Run, write(tmp_path, text), flags)


def test_a_file_that_is_no_text_is_not_toml(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"a\.toml is not valid TOML"):
        load(Run, tmp_path / "a.toml")


def test_sections_of_any_keys_and_keys_that_must_be_there() -> None:
    read = lambda values: from_dict(Usual, values, "usual.")  # noqa: E731
    assert read({"acceleration": 4, "statistics": {"a": [1, 2.5]}}) == Usual(4.0, {"a": (1.0, 2.5)})
    with pytest.raises(ValueError, match=r"usual.statistics is missing; known: acceleration, statistics"):
        read({"acceleration": 4})
    with pytest.raises(ValueError, match=r"usual.statistics is \[1\], expected a section of keys"):
        read({"acceleration": 4, "statistics": [1]})
    with pytest.raises(ValueError, match=r"usual.statistics.a is 'x', expected a number"):
        read({"acceleration": 4, "statistics": {"a": ["x"]}})


def test_choices_are_checked_by_hand_too() -> None:
    assert check_choice("times", "uniform", Literal["uniform", "lognormal"]) == "uniform"
    with pytest.raises(ValueError, match=r"times is 'log', expected one of: uniform, lognormal"):
        check_choice("times", "log", Literal["uniform", "lognormal"])


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no configuration file .*none\.toml"):
        load(Run, tmp_path / "none.toml")


def test_flags_reach_into_lists_of_sections(tmp_path: Path) -> None:
    path = write(tmp_path, "[[methods]]\nlr = 1\n[[methods]]\nlr = 2\n")
    assert [method.steps for method in load(Study, path, ("methods.1.steps=7",)).methods] == [10, 7]
    with pytest.raises(ValueError, match=r"methods.2.steps=7': 2 is not one of 0 to 1"):
        load(Study, path, ("methods.2.steps=7",))
    with pytest.raises(ValueError, match=r"steps is not a key of a section; there are 2: number one"):
        load(Study, path, ("methods.steps=7",))
    with pytest.raises(ValueError, match=r"lr is a value, not a section"):
        load(Study, path, ("methods.0.lr.x=7",))
