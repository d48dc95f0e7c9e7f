"""The command: mistakes get one clear line and exit code 2, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mcddpm import load_model
from mcddpm.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "none.toml"], "no configuration file none.toml"),
        (["train", "bad.toml"], "unknown key training.stepz; did you mean steps"),
        (["train", "good.toml", "--set", "nonsense"], "is not of the form section.key=value"),
        (["train", "good.toml", "--out", "bad.toml/run"], "cannot write to the folder"),
        (["weights", "show", "none"], "no model 'none'"),
        (["weights", "show", "."], "is not a model folder: model.json is missing"),
        (["weights", "import", "none.pt", "--config", "none.json", "--out", "m"], "no file none.pt"),
        (["weights", "import", "bad.toml", "--config", "bad.toml", "--out", "m"], "is not a checkpoint"),
    ],
)
def test_mistakes_get_one_line(tmp_path: Path, monkeypatch, capfd, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("[training]\nstepz = 3\n")
    Path("good.toml").write_text("[training]\nsteps = 3\n")
    assert main(arguments) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert message in said and "Traceback" not in said


@pytest.mark.parametrize("arguments", [["fly"], ["train"], ["train", "a.toml", "--sett", "x=1"], ["weights"]])
def test_wrong_usage_exits_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2


def test_train_then_show(tmp_path: Path, capfd) -> None:
    (tmp_path / "a.toml").write_text(
        "[data]\ndrawn_size = 16\n[network]\nchannels = 8\nheads = 2\n[training]\nsteps = 2\n"
    )
    run = str(tmp_path / "run")
    assert main(["train", str(tmp_path / "a.toml"), "--out", run, "--set", "training.batch=2"]) == 0
    assert "trained:" in capfd.readouterr().err
    assert main(["weights", "show", run]) == 0
    model = str(tmp_path / "model")
    assert main(["weights", "export", run, "--out", model]) == 0
    assert {p.name for p in (tmp_path / "model").iterdir()} >= {
        "model.safetensors",
        "model.json",
        "config.json",
        "log.jsonl",
    }
    for a, b in zip(load_model(model).parameters(), load_model(run).parameters(), strict=True):
        assert torch.equal(a, b)
    assert main(["weights", "export", run, "--out", model]) == 2  # not overwritten
    assert main(["weights", "export", model, "--out", model + "2"]) == 2  # not a run
    out = capfd.readouterr().out
    assert '"parameterisation": "denoised"' in out and "parameters in" in out


@pytest.mark.parametrize(("processes", "late"), [("1", True), ("2", False)])
def test_a_process_of_torchrun_ends_at_once_with_its_code(processes: str, late: bool) -> None:
    """gloo's threads would abort one that takes its time to end."""
    script = "import atexit, runpy, sys; atexit.register(print, 'late'); sys.argv[1:] = ['data', 'info', 'nosuch']; "
    script += "runpy.run_module('mcddpm', run_name='__main__')"
    environment = os.environ | {"WORLD_SIZE": processes, "RANK": "0"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert ended.returncode == 2 and "nosuch" in ended.stderr + ended.stdout
    assert ("late" in ended.stdout) == late
