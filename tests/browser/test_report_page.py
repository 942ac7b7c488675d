from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from harness import reports
from harness.page import Page, soon
from torchlayout.compare.report import write_report

HOSTILE = '</script><img src=x onerror="window.pwned=1"><b>|`*_[x](javascript:pwned=1)'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module")
def usual(folder: Path) -> Path:
    """A study with layouts that ran and with one for each way not to."""
    report = reports.study()
    report["layouts"] += reports.losers()
    return write_report(report, folder / "usual")


@pytest.fixture(scope="module")
def large(folder: Path) -> Path:
    """A study of 1,000 layouts."""
    return write_report(reports.large(1000), folder / "large")


@pytest.fixture
def page(browser: Chrome, usual: Path) -> Page:
    return Page(browser).open(usual)


ROWS = ".scroll > table > tbody > tr:not(.detail)"


def labels(page: Page) -> list[str]:
    return page.texts(f"{ROWS} button.label")


def column(page: Page, key: str) -> list[float]:
    """The figures of a column, from the rows that have one."""
    return [float(re.sub(r"[^\d.].*", "", text.replace(",", ""))) for text in page.texts(f"{ROWS} .c-{key}")]


def chart(page: Page, title: str) -> str:
    """Selector of the focusable part of a chart."""
    assert page.all(f'.canvas[aria-label^="{title}"]')
    return f'.canvas[aria-label^="{title}"]'


def place_of(page: Page, canvas: str, label: str) -> list[float]:
    """Where a chart draws a layout, by going to it with the keys."""
    element = page.one(canvas)
    for _ in range(40):
        element.send_keys(Keys.ARROW_RIGHT)
        if page.run("return arguments[0].querySelector('.tip b').textContent", element) == label:
            move = page.run("return arguments[0].querySelector('.pointer').style.transform", element)
            return [float(number) for number in re.findall(r"[\d.]+", move)]
    raise AssertionError(f"{label} is not in the chart")


def test_the_verdict_comes_first_in_plain_words(page: Page) -> None:
    first = page.one("section")
    assert "fsdp8+mb2 is fastest here: 1.03x the speed of fsdp8" in first.text
    assert "Fair: same data, weights, tokens" in first.text
    assert "Same training: losses differ by at most" in first.text
    assert "12 measured, 1 out of memory, 1 timed out, 1 failed, 1 not run, 1 not run yet" in first.text


def test_using_everything_says_nothing_on_the_console_and_asks_nothing_of_the_network(page: Page, usual: Path) -> None:
    for key in ("speed", "tokens", "parity", "label"):
        page.click(f'th[data-key="{key}"] button')
    page.click(f"{ROWS} button.label")
    page.click('[data-mode="difference"]')
    page.click(".theme")
    page.write("#filter", "tp2")
    page.click(".copy")
    page.listen()
    assert page.said == []
    assert [url for url in page.requests if not url.startswith(("data:", "blob:", usual.as_uri()))] == []


def test_the_policy_lets_nothing_out(page: Page) -> None:
    leaks = """
        const done = arguments[0];
        const image = new Image();
        image.onload = () => done("image");
        image.onerror = () => fetch("http://127.0.0.1:9/").then(() => done("fetch"), (error) => done(String(error)));
        image.src = "http://127.0.0.1:9/pixel.png";
    """
    answer = page.browser.execute_async_script(leaks)
    page.listen()
    assert "Failed to fetch" in answer
    assert sum("violates the following Content Security Policy" in line for line in page.said) == 2


def test_headings_sort_both_ways_and_layouts_without_figures_stay_last(page: Page) -> None:
    steps = column(page, "step")
    assert steps == sorted(steps)
    assert page.one('th[data-key="step"]').get_attribute("aria-sort") == "ascending"
    page.click('th[data-key="step"] button')
    assert column(page, "step") == sorted(steps, reverse=True)
    assert page.one('th[data-key="step"]').get_attribute("aria-sort") == "descending"
    assert labels(page)[12:] == ["fsdp8+mb8", "pp2-fsdp4+gpipe", "fsdp2-tp4", "fsdp2-tp3", "dp8"]
    page.click('th[data-key="mfu"] button')
    assert column(page, "mfu") == sorted(column(page, "mfu"), reverse=True)
    page.click('th[data-key="label"] button')
    assert labels(page)[0] == "dp2-fsdp4"
    assert len(page.all("[aria-sort]")) == 1


def test_words_filter_and_a_minus_leaves_out(page: Page) -> None:
    page.write("#filter", "tp2 -sp")
    assert labels(page) == ["fsdp4-tp2"]
    assert page.one(".count").text == "1 of 17 layouts"
    page.write("#filter", "tp1 pp1 mb2")
    assert labels(page) == ["fsdp8+mb2"], "degrees that the label leaves out are words too"
    page.write("#filter", "nccl error")
    assert labels(page) == ["fsdp2-tp4"], "reasons are searched"
    page.write("#filter", "")
    assert len(labels(page)) == 17


def test_switches_filter_and_the_charts_follow(page: Page) -> None:
    bars = ".bars > li button.label"
    assert len(page.all(bars)) == 12
    tensor = next(b for b in page.all('[aria-label="Kind"] button') if b.text.startswith("tensor"))
    tensor.click()
    page.settle()
    assert tensor.get_attribute("aria-pressed") == "false"
    assert not [label for label in labels(page) if "tp2" in label and "pp2" not in label]
    assert len(page.all(bars)) == 8
    assert "tensor" not in page.texts(".plot .key")
    status = next(b for b in page.all('[aria-label="Status"] button') if b.text.startswith("measured"))
    status.click()
    page.settle()
    assert all(reason for reason in page.texts(f"{ROWS} td.reason")[:-1])
    assert page.all(bars) == []


def test_a_row_opens_to_its_reasons_runs_and_command(page: Page) -> None:
    button = next(b for b in page.all(f"{ROWS} button.label") if b.text == "pp4-fsdp2+ckpt")
    button.click()
    page.settle()
    assert button.get_attribute("aria-expanded") == "true"
    detail = page.one("tr.detail").text
    assert "pp4: 9% bubble in 1f1b with 32 micro-batches" in detail
    assert "executes 33% more FLOPs than the model needs" in detail
    assert "pp4-fsdp2+ckpt/repeat_2/logs/torchrun.log" in detail
    assert "--layout 'pp4-fsdp2+ckpt'" in detail
    button.click()
    page.settle()
    assert page.all("tr.detail") == []


def test_a_bubble_is_the_schedules_and_the_detail_has_the_traced_one(browser: Chrome, folder: Path) -> None:
    report = reports.study(("fsdp8", "pp4-fsdp2+ckpt"), shares=True)
    report["layouts"][1]["shares"] |= {"bubble": 0.1234}
    page = Page(browser).open(write_report(report, folder / "traced"))
    heading = page.one('th[data-key="bubble"] button')
    assert heading.text.startswith("Bubble (schedule)")
    assert "schedule's formula, not measured" in (heading.get_attribute("title") or "")
    assert page.run("return arguments[0].scrollWidth <= arguments[0].clientWidth", page.one('th[data-key="bubble"]'))
    next(row for row in page.all(ROWS) if "pp4" in row.text).find_element("css selector", ".c-step").click()
    page.settle()
    assert "by the schedule's formula, 12.3% of the traced step" in page.one("tr.detail").text


def test_layouts_without_figures_show_their_reason(page: Page) -> None:
    rows = {row.text.split("\n")[0]: row.text for row in page.all(ROWS)}
    assert "out of memory" in rows["fsdp8+mb8"]
    assert "79.1 of 80 GiB" in rows["fsdp8+mb8"]
    assert "still running after 600 seconds" in rows["pp2-fsdp4+gpipe"]
    assert "tensor = 3 does not divide 40 heads" in rows["fsdp2-tp3"]


def test_hovering_and_clicking_a_point_of_the_scatter(page: Page) -> None:
    canvas = chart(page, "MFU against memory")
    left, top = place_of(page, canvas, "pp2-fsdp2-tp2+sp")
    page.one(canvas).send_keys(Keys.ESCAPE)
    tip = page.one(f"{canvas} .tip")
    assert not tip.is_displayed()
    chain = page.hover(page.one(f"{canvas} .u-over"), left + 3, top + 3)
    assert tip.text.split("\n")[0] == "pp2-fsdp2-tp2+sp"
    assert "MFU 55.6%" in tip.text
    chain.click().perform()
    assert soon(lambda: "pp2: 3% bubble" in "".join(page.texts("tr.detail")))


def test_dragging_zooms_and_a_double_click_shows_all(page: Page) -> None:
    canvas = chart(page, "MFU against memory")
    over = page.one(f"{canvas} .u-over")
    before = place_of(page, canvas, "fsdp4-tp2")
    page.hover(over, 20, 20).click_and_hold().move_by_offset(over.size["width"] // 2, 100).release().perform()
    page.settle()
    assert place_of(page, canvas, "fsdp4-tp2") != before
    page.hover(over, 30, 30).double_click().perform()
    page.settle()
    assert place_of(page, canvas, "fsdp4-tp2") == before


def test_losses_overlay_and_turn_into_differences(page: Page) -> None:
    canvas = chart(page, "Losses")
    page.one(canvas).send_keys(Keys.ARROW_RIGHT)
    assert re.search(r"step 40\nloss 4\.\d{6}", page.one(f"{canvas} .tip").text)
    page.click('[data-mode="difference"]')
    page.one(canvas).send_keys(Keys.ARROW_RIGHT)
    assert re.search(r"difference -?\d\.\de-\d", page.one(f"{canvas} .tip").text)
    over = page.one(f"{canvas} .u-over")
    page.hover(over, over.size["width"] / 2, over.size["height"] / 2)
    assert re.search(r"step \d+\ndifference", page.one(f"{canvas} .tip").text)


def test_the_page_is_usable_by_keyboard_alone(page: Page) -> None:
    page.run("document.activeElement.blur()")
    reached: list[str] = []
    for _ in range(40):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.run("return document.activeElement.closest('th')?.dataset.key ?? ''"))
        if reached[-1] == "memory":
            break
    assert reached[-1] == "memory"
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    page.settle()
    assert page.one('th[data-key="memory"]').get_attribute("aria-sort") == "ascending"
    outline = page.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "what has the focus is seen"
    canvas = page.one(chart(page, "MFU against memory"))
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ENTER)
    assert soon(lambda: len(page.all("tr.detail")) == 1)


def test_the_command_is_copied(page: Page) -> None:
    grant = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.browser.execute_cdp_cmd("Browser.grantPermissions", grant)
    page.click("section.best .copy")
    assert soon(lambda: page.one("section.best .copy").text == "Copied")
    read = "const done = arguments[0]; navigator.clipboard.readText().then(done, (error) => done(String(error)))"
    assert page.browser.execute_async_script(read).endswith("--layout 'fsdp8+mb2'")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_in_both_themes(page: Page, theme: str) -> None:
    page.look(1280, theme)
    names = ("--ink", "--soft", "--accent", "--good", "--bad", "--warn")
    script = """
        const probe = document.createElement("span");
        document.querySelector("main").append(probe);
        const found = arguments[0].map((name) => {
            probe.style.color = `var(${name})`;
            return getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
        });
        probe.remove();
        return found;
    """
    card, *colours = page.run(script, ["--card", *names])
    assert (luminance(card) > 0.5) == (theme == "light")
    # WCAG 2.2, level AA, for text of usual size.
    faint = {name: contrast(card, colour) for name, colour in zip(names, colours, strict=True)}
    assert {name: value for name, value in faint.items() if value < 4.5} == {}


def contrast(one: list[float], other: list[float]) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: list[float]) -> float:
    parts = [value / 255 for value in colour]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_theme_can_be_chosen_and_figures_follow(page: Page) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    figure = "return document.querySelector('img.drawn').src"
    light, drawn = page.run(background), page.run(figure)
    page.click(".theme")
    assert page.run(background) == light, "the first click fixes what was automatic"
    page.click(".theme")
    assert page.run(background) != light
    assert page.run(figure) != drawn
    assert page.run("return [...document.images].every((image) => image.complete && image.naturalWidth > 100)")


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out_of_the_screen(page: Page, width: int) -> None:
    page.look(width, "light")
    page.settle()
    assert page.run("return document.documentElement.scrollWidth") <= width
    if width == 360:
        assert not page.one("thead").is_displayed(), "rows are cards"
        page.one('#sorter option[value="memory"]').click()
        page.settle()
        assert column(page, "memory") == sorted(column(page, "memory"))


def test_hostile_words_stay_words(browser: Chrome, folder: Path) -> None:
    report = reports.study(("fsdp8", "fsdp4-tp2"))
    report["study"]["name"] = HOSTILE
    report["study"]["hardware"] = {HOSTILE: HOSTILE}
    report["verdict"] |= {"problems": [HOSTILE], "fair": False, "sentence": HOSTILE}
    report["layouts"] += [reports.blank(HOSTILE, "failed", None, HOSTILE)]
    report["layouts"][1] |= {"torchrun": HOSTILE, "config_toml": HOSTILE, "why_slower": [HOSTILE]}
    page = Page(browser).open(write_report(report, folder / "hostile"))
    page.write("#filter", "onerror")
    assert labels(page) == [HOSTILE]
    page.click(f"{ROWS} button.label")
    page.listen()
    assert page.run("return window.pwned") is None
    assert page.said == []
    assert page.run("return document.querySelectorAll('img:not(.drawn), b > b, a').length") == 0
    assert HOSTILE in page.one("h1").text
    assert HOSTILE in page.texts(".problems li")


def test_a_study_without_a_finished_run_has_a_page(browser: Chrome, folder: Path) -> None:
    report = reports.study(())
    report["layouts"] = reports.losers()
    report["verdict"] |= {"fair": False, "parity": False}
    page = Page(browser).open(write_report(report, folder / "unfinished"))
    page.listen()
    assert page.said == []
    assert "No layout has finished a run yet." in page.one(".sentence").text
    assert len(labels(page)) == 5
    assert page.all(".canvas, .bars, img.drawn") == []


def test_the_report_is_there_without_scripts(browser: Chrome, usual: Path) -> None:
    page = Page(browser)
    page.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.browser.get(usual.as_uri())
        assert "fsdp8+mb2 is fastest here" in page.one("noscript").text
    finally:
        page.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


SORT = """
    const done = arguments[arguments.length - 1];
    const drawn = () => new Promise((go) => requestAnimationFrame(() => setTimeout(go, 0)));
    (async () => {
        for (const key of arguments[0]) {
            document.querySelector(`th[data-key="${key}"] button`).click();
            document.body.offsetHeight;  // the rows are laid out
            await drawn();
            await drawn();
        }
        done();
    })();
"""


def test_a_thousand_layouts_sort_in_less_than_a_tenth_of_a_second(browser: Chrome, large: Path) -> None:
    page = Page(browser).open(large)
    keys = ["speed", "memory", "label", "mfu", "status", "step", "step", "parity", "tokens", "data"]
    before = page.busy_seconds()
    page.browser.execute_async_script(SORT, keys)
    # In the thread's own time, as others share the machine; with the charts, which are drawn again.
    assert (page.busy_seconds() - before) / len(keys) < 0.1
    assert page.one('th[data-key="data"]').get_attribute("aria-sort") == "ascending"
    assert page.one(".count").text == "1,000 layouts"
    page.listen()
    assert page.said == []


def test_a_thousand_layouts_come_as_they_are_scrolled_to(browser: Chrome, large: Path) -> None:
    page = Page(browser).open(large)
    assert len(page.all(ROWS)) < 100
    down = """
        const scroll = document.querySelector(".scroll");
        scroll.scrollTop = scroll.scrollHeight;
        return document.querySelectorAll(arguments[0]).length;
    """
    assert soon(lambda: page.run(down, ROWS) == 1000, 60)
    page.write("#filter", "memory")
    assert page.one(".count").text == "100 of 1,000 layouts"


def test_pictures_of_the_page(browser: Chrome, usual: Path, tmp_path: Path) -> None:
    """Takes screenshots to look at: TORCHLAYOUT_SCREENSHOTS names the folder."""
    page = Page(browser).open(usual)
    folder = Path(os.environ.get("TORCHLAYOUT_SCREENSHOTS", tmp_path))
    for width, theme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
        page.look(width, theme)
        page.settle()
        file = folder / f"report_{width}_{theme}.png"
        file.write_bytes(page.picture())
        assert file.stat().st_size > 50_000
