"""Configuration: TOML and flags in, mistakes named."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcddpm.evaluation.study import Evaluation
from mcddpm.system.settings import differences, from_dict, load_as, to_dict
from mcddpm.training.settings import Config, load
from mcddpm.uncertainty.calibrate import Plan
from mcddpm.uncertainty.selfcheck import Usual

ROOT = Path(__file__).resolve().parents[1]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_file_and_flags(tmp_path: Path) -> None:
    path = write(tmp_path, "[training]\nlr = 1\nsteps = 5\n[mask]\naccelerations = [4, 6.5]\n")
    settings = load(path, ("training.steps=7", "data.train=a b.npy", "network.multipliers=[1, 2]"))
    assert settings.training.lr == 1.0 and isinstance(settings.training.lr, float)
    assert settings.training.steps == 7 and settings.mask.accelerations == (4.0, 6.5)
    assert settings.data.train == "a b.npy" and settings.network.multipliers == (1, 2)
    assert settings.training.batch == Config().training.batch


def test_round_trip() -> None:
    settings = from_dict(Config, {"training": {"lr": 0.5}, "mask": {"families": ["radial"]}})
    assert from_dict(Config, to_dict(settings)) == settings


def test_differences() -> None:
    a, b = to_dict(Config()), to_dict(from_dict(Config, {"schedule": {"T": 10}}))
    assert differences(a, b) == {"schedule.T": (1000, 10)}


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("[mask]\naccelaration = 4", (), "unknown key mask.accelaration; did you mean accelerations"),
        ("[trainig]\nlr = 1", (), "unknown key trainig; did you mean training"),
        ("[training]\nlr = 'fast'", (), "training.lr is 'fast', expected a number"),
        ("[training]\nsteps = 1.5", (), "training.steps is 1.5, expected a whole number"),
        ("[training]\nsteps = true", (), "training.steps is True, expected a whole number"),
        ("training = 3", (), "training is 3, expected a section of keys"),
        ("[training", (), "is not valid TOML"),
        ("", ("training.lr",), "is not of the form section.key=value"),
        ("", ("training.lrr=1",), "unknown key training.lrr; did you mean lr"),
        ("data = 3", ("data.train=x",), "data is a value, not a section"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path, text), flags)


def test_sections_of_any_keys_and_keys_that_must_be_there() -> None:
    read = lambda values: from_dict(Usual, values, "usual.")  # noqa: E731
    assert read({"acceleration": 4, "statistics": {"a": [1, 2.5]}}) == Usual(4.0, {"a": (1.0, 2.5)})
    with pytest.raises(ValueError, match=r"usual.statistics is missing; known: acceleration, statistics"):
        read({"acceleration": 4})
    with pytest.raises(ValueError, match=r"usual.statistics is \[1\], expected a section of keys"):
        read({"acceleration": 4, "statistics": [1]})
    with pytest.raises(ValueError, match=r"usual.statistics.a is 'x', expected a number"):
        read({"acceleration": 4, "statistics": {"a": ["x"]}})


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no configuration file"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.stem)
def test_shipped_configs_load(path: Path) -> None:
    command = path.read_text().splitlines()[0]
    what, _, rest = command.removeprefix("# mcddpm ").partition(" ")
    assert rest == f"configs/{path.name}", "its first line is the command that runs it"
    load_as({"train": Config, "evaluate": Evaluation, "calibrate": Plan}[what], path)


def test_flags_reach_into_lists_of_sections(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[[methods]]\nname = "A"\n[[methods]]\nname = "B"\n')
    load = lambda *flags: load_as(Evaluation, tmp_path / "a.toml", flags)  # noqa: E731
    assert [method.steps for method in load("methods.1.steps=7").methods] == [0, 7]
    with pytest.raises(ValueError, match=r"methods.2.steps=7': 2 is not one of 0 to 1"):
        load("methods.2.steps=7")
    with pytest.raises(ValueError, match=r"steps is not a key of a section; there are 2: number one"):
        load("methods.steps=7")
