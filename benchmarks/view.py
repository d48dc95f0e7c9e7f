"""The viewer's page in a real browser: how fast it is, and what it looks like.

pip install 'mcddpm[browser]'                # and a Chromium on the path
python benchmarks/view.py speed              # a result of 36 slices, 320 x 320, 20 samples
python benchmarks/view.py pictures           # the screenshots in docs/, of the bundled scan, at two sizes
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from mcddpm import demo
from mcddpm.data import writers
from mcddpm.models.store import load_model
from mcddpm.reconstruction.batch import reconstruct_scans
from mcddpm.reconstruction.inputs import Task
from mcddpm.reconstruction.sample import check
from mcddpm.viewer.app import make_app

BROWSER = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
SLICES, SIZE, SAMPLES = 36, 320, 20
CHANGE = """async (slice) => {
    const start = performance.now(), slider = document.getElementById('slice');
    slider.value = slice;
    slider.dispatchEvent(new Event('input'));
    while (!document.body.dataset.shown.includes(`,${slice},`)) await new Promise((next) => setTimeout(next, 1));
    return performance.now() - start;
}"""


@contextmanager
def served(root: Path) -> Iterator[str]:
    """The address of a server that shows a folder."""
    server = uvicorn.Server(uvicorn.Config(make_app(root), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(30)


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Any, address: str, width: int = 1280, height: int = 720) -> Any:
    """The page, once it shows an image."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(address)
    page.wait_for_selector("body[data-shown]")
    return page


def draw_result(path: Path, slices: int = SLICES, size: int = SIZE, samples: int = SAMPLES) -> None:
    """A result of noise, which packs no better than a scan: one slice's samples serve all slices."""
    r = np.random.default_rng(0)
    drawn = (r.normal(size=(samples, size, size, 2)).astype(np.float32) + 3).view(np.complex64)[..., 0]
    mean, std = np.abs(drawn).mean(0), np.abs(drawn).std(0, ddof=1)
    volume = [np.repeat(image[None], slices, 0) for image in (mean, std, np.abs(drawn[0]))]
    beside = {"truth": volume[2], "zero_filled": volume[2], "mask": volume[2] > 3}
    provenance = {"model": "none, drawn", "samples": samples}
    writers.write_h5(path, writers.Result(volume[0], volume[1], provenance, [drawn] * slices, beside=beside))


def speed(browser: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        draw_result(Path(folder) / "drawn.h5")
        with served(Path(folder)) as address:
            browser.new_page().close()  # the browser's own start is not ours
            start = time.monotonic()
            page = opened(browser, address)
            print(f"opened in {time.monotonic() - start:.2f} s ({SLICES} x {SIZE} x {SIZE}, {SAMPLES} samples)")
            for mode, layers in (("1", "one layer"), ("2", "two layers")):
                page.keyboard.press(mode)
                slices = range(0, SLICES, 3) if mode == "1" else range(1, SLICES, 3)  # never one that was seen
                taken = [page.evaluate(CHANGE, slice) for slice in slices]
                print(f"slice change, {layers}: {np.median(taken):.0f} ms (median), {max(taken):.0f} ms (worst)")


def pictures(browser: Any, docs: Path) -> None:
    """Of the bundled scan at 4x: mean beside std with a box, samples blended, k-space; large and small windows."""
    with tempfile.TemporaryDirectory() as folder:
        scan = str(shutil.copy(demo.SCAN, Path(folder) / "head.h5"))
        task = Task(mask="random_columns")
        model = check(load_model(task.model), task.plan)
        reconstruct_scans([scan], Path(folder) / "results", task, model)
        with served(Path(folder)) as address:
            for name, (width, height), act in (
                ("view-box", (1600, 900), _mean_and_std),
                ("view-swipe", (1280, 720), _swipe),
                ("view-kspace", (1280, 720), _kspace),
                ("view-job", (1280, 720), _job),
            ):
                page = opened(browser, address, width, height)
                act(page)
                page.wait_for_timeout(400)
                page.screenshot(path=docs / f"{name}.png")
                print(docs / f"{name}.png")
                page.close()


def _drag(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Over the first pane; places as fractions of it."""
    area = page.locator("#pane-a").bounding_box()
    places = [(area["x"] + x * area["width"], area["y"] + y * area["height"]) for x, y in (start, end)]
    page.mouse.move(*places[0])
    page.mouse.down()
    page.mouse.move(*places[1], steps=8)
    page.mouse.up()


def _mean_and_std(page: Any) -> None:
    page.keyboard.press("2")
    page.locator("#layer-b").select_option("std")
    page.keyboard.press("b")
    _drag(page, (0.40, 0.42), (0.56, 0.54))


def _swipe(page: Any) -> None:
    page.locator("#layer-a").select_option("zero_filled")
    page.keyboard.press("4")
    page.locator("#layer-b").select_option("mean")


def _kspace(page: Any) -> None:
    page.keyboard.press("2")
    page.locator("#layer-a").select_option("kspace")
    page.locator("#layer-b").select_option("mask")


def _job(page: Any) -> None:
    page.locator("#input").select_option(label="head.h5")
    page.wait_for_function("() => document.getElementById('described').textContent.includes('slices')")
    page.locator("#mask").select_option("equispaced_columns")
    page.locator("#acceleration").fill("8")
    page.wait_for_function("() => !document.getElementById('start').disabled")
    page.locator("#start").click()
    page.wait_for_function("() => !document.getElementById('live').hidden", timeout=120_000)
    page.wait_for_timeout(8000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "pictures"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    if BROWSER is None:
        raise SystemExit("there is no Chromium on this machine")
    with chromium() as browser:
        if asked.what == "speed":
            speed(browser)
        else:
            pictures(browser, asked.docs)


if __name__ == "__main__":
    main()
