"""The page in a real browser: `make test-browser`. Numbers on screen are compared with the arrays they come from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the viewer's packages are not installed (mcddpm[view])")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed (make test-browser)")
from benchmarks.view import BROWSER, CHANGE, chromium, draw_result, opened, served
from mcddpm import demo, load_model
from mcddpm.reconstruction.batch import reconstruct_scans
from mcddpm.reconstruction.inputs import Task
from mcddpm.reconstruction.plan import DrawPlan

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled scan and a quick result of it."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copy(demo.SCAN, folder / "scan.h5")
    task = Task(mask="random_columns", plan=DrawPlan(4, steps=4))
    reconstruct_scans([str(folder / "scan.h5")], folder / "results", task, load_model("default"))
    return folder


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with served(root) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    if BROWSER is None:
        pytest.skip("there is no Chromium on this machine")
    with chromium() as made:
        yield made


@pytest.fixture
def page(browser, address: str) -> Iterator[object]:
    made = browser.new_page(viewport={"width": 1280, "height": 720})
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    made.goto(address)
    made.wait_for_selector("body[data-shown]")
    made.wrong = wrong
    yield made
    made.close()
    assert not wrong, "nothing was wrong on the way"


def state(page) -> dict:
    return page.evaluate(
        "({slice: view.state.slice, layers: view.state.layers, windows: view.state.windows, box: view.state.box, "
        "zoom: view.state.zoom, mode: view.state.mode, sample: view.state.sample, name: view.state.name})"
    )


def numbers(page, selector: str) -> dict[str, str]:
    terms, texts = (page.locator(f"{selector} {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(terms, texts, strict=True))


def stored(root: Path, name: str, key: str, slice: int) -> np.ndarray:
    with h5py.File(root / name) as file:
        values = file[key][slice]
    return values if np.iscomplexobj(values) else values.astype(float)


def at_pixel(page, row: int, column: int) -> tuple[float, float]:
    """Where a pixel of the image lies on the page."""
    area = page.locator("#pane-a").bounding_box()
    size = page.evaluate("[view.state.info.height, view.state.info.width]")
    scale = min(area["width"] / size[1], area["height"] / size[0])
    return (
        area["x"] + area["width"] / 2 + (column + 0.5 - size[1] / 2) * scale,
        area["y"] + area["height"] / 2 + (row + 0.5 - size[0] / 2) * scale,
    )


def settled(page, what: str) -> None:
    page.wait_for_function(f"() => document.body.dataset.shown.includes({what!r})")


def test_slices_by_keys_wheel_and_slider(page) -> None:
    assert state(page)["slice"] == 1 and "2 of 3" in page.locator("#slice-number").inner_text()
    page.keyboard.press("ArrowUp")
    settled(page, ",2,")
    page.keyboard.press("Home")
    settled(page, ",0,")
    page.mouse.move(*at_pixel(page, 50, 50))
    page.mouse.wheel(0, 100)
    settled(page, ",1,")
    page.locator("#slice").fill("2")
    settled(page, ",2,")


def test_a_slice_change_is_fast(browser, tmp_path: Path) -> None:
    """Slices that were neither seen nor fetched ahead, of the size that scans have."""
    draw_result(tmp_path / "drawn.h5", slices=24, samples=2)
    with served(tmp_path) as address:
        made = opened(browser, address)
        taken = sorted(made.evaluate(CHANGE, slice) for slice in (0, 3, 6, 9, 15, 18, 21))
        made.close()
    assert taken[0] < 100 and taken[len(taken) // 2] < 250, "ms; the median is 50 on a machine that does nothing else"


def test_value_std_under_the_cursor(page, root: Path) -> None:
    name, slice = state(page)["name"], state(page)["slice"]
    mean, std = (stored(root, name, key, slice) for key in ("mean", "std"))
    for row, column in ((96, 96), (70, 120), (120, 60)):
        page.mouse.move(*at_pixel(page, row, column))
        page.wait_for_function(f"() => document.querySelector('#cursor').textContent.includes('{row}, {column}')")
        found = numbers(page, "#cursor")
        assert float(found["mean"]) == pytest.approx(mean[row, column], rel=2e-3, abs=np.ptp(mean) / 60000)
        assert float(found["std"]) == pytest.approx(std[row, column], rel=2e-3, abs=np.ptp(std) / 60000)


def test_layers_modes_and_window(page, root: Path) -> None:
    page.select_option("#layer-a", "error")
    settled(page, "error")
    page.mouse.move(*at_pixel(page, 90, 90))
    page.wait_for_function("() => document.querySelector('#cursor').textContent.includes('|error|')")
    name, slice = state(page)["name"], state(page)["slice"]
    error = abs(stored(root, name, "mean", slice) - stored(root, name, "truth", slice))
    assert float(numbers(page, "#cursor")["|error| of the mean"]) == pytest.approx(
        error[90, 90], rel=2e-3, abs=np.ptp(error) / 60000
    )
    for key, mode in (("2", "side"), ("3", "blend"), ("4", "swipe"), ("1", "single")):
        page.keyboard.press(key)
        assert state(page)["mode"] == mode
        assert page.locator("#pane-b").is_visible() == (mode == "side")
        assert page.locator("#mix").is_visible() == (mode in ("blend", "swipe"))
    page.select_option("#layer-a", "mean")
    settled(page, '"mean"')
    before = state(page)["windows"]["image"]
    grey = page.evaluate("view.state.shown[0].pixels(...view.state.windows.image).data[4 * (96 * 192 + 96)]")
    page.mouse.move(*at_pixel(page, 96, 96))
    page.mouse.down()
    page.mouse.move(*at_pixel(page, 60, 40), steps=4)
    page.mouse.up()
    after = state(page)["windows"]["image"]
    assert after != before and after[1] - after[0] < before[1] - before[0]
    assert page.evaluate("view.state.shown[0].pixels(...view.state.windows.image).data[4 * (96 * 192 + 96)]") != grey
    page.get_by_role("button", name="Auto").click()
    assert state(page)["windows"]["image"] == before


def test_a_box_and_its_statistics(page, root: Path) -> None:
    page.get_by_role("button", name="Box").click()
    page.mouse.move(*at_pixel(page, 60, 70))
    page.mouse.down()
    page.mouse.move(*at_pixel(page, 89, 99), steps=5)
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('#box').textContent.includes('pixels')")
    assert state(page)["box"] == {"top": 60, "left": 70, "height": 30, "width": 30}
    found, name, slice = numbers(page, "#box"), state(page)["name"], state(page)["slice"]
    inside = stored(root, name, "mean", slice)[60:90, 70:100]
    averages = abs(stored(root, name, "samples", slice)[:, 60:90, 70:100]).mean((1, 2))
    assert int(found["pixels"]) == 900 and float(found["mean"]) == pytest.approx(inside.mean(), rel=1e-3)
    assert float(found["std of the average"]) == pytest.approx(averages.std(ddof=1), rel=2e-3)


def test_film_zoom_and_export(page, tmp_path: Path) -> None:
    page.get_by_role("button", name="Film").click()
    page.wait_for_function("() => view.state.sample === 3")
    assert state(page)["layers"][0] == "sample"
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Film").click()
    page.locator("#pane-a").focus()
    page.keyboard.press("+")
    assert state(page)["zoom"] > 1
    page.keyboard.press("r")
    assert state(page)["zoom"] == 1
    with page.expect_download() as waiting:
        page.get_by_role("button", name="PNG").click()
    waiting.value.save_as(tmp_path / "seen.png")
    import matplotlib.image

    picture = matplotlib.image.imread(tmp_path / "seen.png")
    assert picture.shape[0] > 300 and picture[..., :3].std() > 0.05


def test_quality_and_provenance_beside_the_picture(page, root: Path) -> None:
    page.wait_for_function("() => document.querySelector('#numbers').textContent.includes('PSNR')")
    name, slice = state(page)["name"], state(page)["slice"]
    mean, truth = (stored(root, name, key, slice) for key in ("mean", "truth"))
    psnr = 10 * np.log10(truth.max() ** 2 / ((mean - truth) ** 2).mean())
    assert float(numbers(page, "#numbers")["PSNR of the mean (slice)"]) == pytest.approx(psnr, abs=0.01)
    told = numbers(page, "#provenance")
    assert told["sampler"] == "dpmpp_2m_sde, 4 steps" and told["input"] == "scan.h5"


def test_reconstruct_watch_cancel_finish_download(page, root: Path, tmp_path: Path) -> None:
    page.set_input_files("#file", str(root / "scan.h5"))
    page.wait_for_function("() => document.querySelector('#described').textContent.includes('3 slices')")
    page.fill("#samples", "4")
    page.fill("#steps", "300")
    page.get_by_role("button", name="Start").click()
    page.wait_for_selector("#jobs li[data-state=running]")
    page.wait_for_function("() => Number(document.querySelector('#preview').dataset.step) > 0")
    first = page.evaluate("document.querySelector('#preview').dataset.step")
    page.wait_for_function(f"() => Number(document.querySelector('#preview').dataset.step) > {first}")
    assert page.locator("#live").is_visible() and "slice 1 of 3" in page.locator("#live-title").text_content()
    page.locator("#jobs li[data-state=running]").get_by_role("button", name="Cancel").click()
    page.wait_for_selector("#jobs li[data-state=cancelled]")
    page.fill("#samples", "3")
    page.fill("#steps", "2")
    page.get_by_role("button", name="Start").click()
    page.wait_for_selector("#jobs li[data-state=done]", timeout=120_000)
    page.wait_for_function("() => view.state.name.startsWith('view-')")
    page.wait_for_function("() => document.querySelector('#provenance').textContent.includes('2 steps')")
    with page.expect_download() as waiting:
        page.locator("#downloads a", has_text="h5").click()
    waiting.value.save_as(tmp_path / "result.h5")
    with h5py.File(tmp_path / "result.h5") as file:
        assert file["samples"].shape == (3, 3, 192, 192) and file["mean"].shape == (3, 192, 192)


def test_a_broken_file_is_told(page, tmp_path: Path) -> None:
    (tmp_path / "broken.h5").write_bytes(b"nothing")
    page.set_input_files("#file", str(tmp_path / "broken.h5"))
    page.wait_for_function("() => document.querySelector('#refused').textContent.includes('cannot be read')")
    assert len(page.wrong) == 1 and "422" in page.wrong.pop(), "the browser's own word for it"


def test_everything_is_reached_by_keyboard_and_has_a_name(page) -> None:
    unnamed = page.evaluate("""[...document.querySelectorAll('button, input, select, canvas')].filter((one) => {
        const label = one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim() || one.title;
        return !label;
    }).map((one) => one.id || one.outerHTML)""")
    assert unnamed == []
    reached = set()
    for _ in range(45):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert {"result", "layer-a", "slice", "pane-a", "input", "play", "export"} <= reached


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1920, 1080)])
def test_it_fits(page, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    assert page.evaluate(
        "document.documentElement.scrollHeight <= innerHeight && document.documentElement.scrollWidth <= innerWidth"
    )
    area = page.locator("#pane-a").bounding_box()
    assert area["height"] > 0.6 * height and area["width"] > 0.45 * width
