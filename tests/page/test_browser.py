"""The page in a real browser: a click path, three widths, light and dark, contrast, names, the keyboard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pydp2
from tests.runs import wait_until

from .webdriver import Browser, browser, lacks

if why := lacks():
    pytest.skip(why, allow_module_level=True)

PROVIDER = """
@provider(input_types={"n": integer_value(1 << 30)}, pool_size=64)
def process(settings, filename):
    for i in range(4000):
        yield {"n": i}
"""
CONTRAST = """
function rgb(text) { return text.match(/[\\d.]+/g).map(Number); }
function light(c) {
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = c.slice(0, 3).map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function back(element) {
  for (let at = element; at; at = at.parentElement) {
    const found = rgb(getComputedStyle(at).backgroundColor);
    if (found.length < 4 || found[3] > 0) return found;
  }
  return [255, 255, 255];
}
const wrong = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const shown = element.getClientRects().length && walker.currentNode.textContent.trim();
  if (!shown || ["SCRIPT", "NOSCRIPT"].includes(element.tagName)) continue;
  const style = getComputedStyle(element);
  const [one, two] = [light(rgb(style.color)), light(back(element))].sort((x, y) => y - x);
  const ratio = (one + 0.05) / (two + 0.05);
  const needed = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
  if (ratio < needed) wrong.push(`${element.tagName} ${walker.currentNode.textContent.trim()}: ${ratio.toFixed(2)}`);
}
return wrong;
"""
NAMES = """
const wrong = [];
const kinds = "button, a, [role=img], [role=region], [role=group], table, section, svg";
for (const element of document.querySelectorAll(kinds)) {
  if (!element.getClientRects().length || element.getAttribute("aria-hidden") === "true") continue;
  const by = element.getAttribute("aria-labelledby");
  const name = element.getAttribute("aria-label") || (by && document.getElementById(by).textContent)
    || (element.tagName === "TABLE" ? element.caption && element.caption.textContent : element.textContent);
  if (!name || !name.trim()) wrong.push(element.outerHTML.slice(0, 80));
}
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
if (new Set(ids).size !== ids.length) wrong.push("two elements with one id");
if (!document.documentElement.lang) wrong.push("no language");
const headings = [...document.querySelectorAll("h1,h2,h3")].filter((heading) => heading.getClientRects().length);
const levels = headings.map((heading) => Number(heading.tagName[1]));
levels.forEach((level, at) => {
  if (level > (at ? levels[at - 1] : 0) + 1) wrong.push(`a heading of level ${level} too early`);
});
return wrong;
"""


TOO_WIDE = """
const wide = [...document.body.querySelectorAll("*")].filter((element) =>
  !element.closest(".scroll, svg") && element.getBoundingClientRect().right > innerWidth + 1);
return wide.map((element) => element.outerHTML.slice(0, 80));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as made:
        yield made


@pytest.fixture
def training(provider_file: Callable[[str], str]) -> Iterator[pydp2.Service]:
    """A service with two trainers, of which rank 1 is slow."""
    stop = threading.Event()
    with pydp2.launch(["a"] * 400, provider_file(PROVIDER), workers=2, page="127.0.0.1:0") as service:

        def train(rank: int, seconds: float) -> None:
            with service.connect(batch_size=32, rank=rank, world_size=2, job="train") as data:
                for _ in data:
                    time.sleep(seconds)
                    if stop.is_set():
                        return

        threads = [threading.Thread(target=train, args=given) for given in ((0, 0.001), (1, 0.03))]
        for thread in threads:
            thread.start()
        try:
            yield service
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def opened(page: Browser, service: pydp2.Service, width: int = 1280, *, dark: bool = False) -> None:
    page.emulate(width, dark=dark)
    page.open(service.page_url or "")
    assert wait_until(lambda: page.text("#state").startswith("live"))
    assert wait_until(lambda: not page.text("#headline").startswith("Nothing to say yet"))


def test_an_operator_sees_which_trainer_is_slow(page: Browser, training: pydp2.Service) -> None:
    opened(page, training)
    assert wait_until(lambda: "rank 1 of job train" in page.text("#rest"))
    assert wait_until(lambda: page.text("#headline").startswith("Ranks wait for another rank"))
    assert "rank 0" in page.text("#jobs")
    assert page.run("return document.querySelectorAll('figure').length") >= 6
    page.click("#whole")
    assert page.run("return document.getElementById('whole').getAttribute('aria-pressed')") == "true"
    page.click("#recent")
    assert page.run("return document.getElementById('whole').getAttribute('aria-pressed')") == "false"
    assert page.errors() == []


def test_the_lines_of_the_whole_run_go_on(page: Browser, training: pydp2.Service) -> None:
    opened(page, training)
    page.click("#whole")
    line = "const path = document.querySelector('#charts path.line'); return path ? path.getAttribute('d') : ''"
    points = "return [whole.length, new Set(points.map((point) => point.time)).size, points.length]"
    assert wait_until(lambda: page.run(points)[0] > 0)
    before, drawn = page.run(points)[0], page.run(line)
    assert wait_until(lambda: page.run(points)[0] > before + 1)
    assert wait_until(lambda: page.run(line) != drawn)
    for selector in ("#recent", "#whole") * 3:
        page.click(selector)
    _, times, kept = page.run(points)
    assert times == kept, "no point comes twice"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_text_is_legible_named_and_inside_of_the_page(
    page: Browser, training: pydp2.Service, width: int, dark: bool, tmp_path: Path
) -> None:
    opened(page, training, width, dark=dark)
    page.screenshot(tmp_path / "page.png")
    assert page.run(CONTRAST) == []
    assert page.run(NAMES) == []
    assert page.run(TOO_WIDE) == [], "nothing but tables scrolls sideways"


def test_all_that_can_be_pressed_is_reached_by_the_keyboard(page: Browser, training: pydp2.Service) -> None:
    opened(page, training)
    reached: set[Any] = set()
    for _ in range(12):
        page.press("\ue004")  # tab
        reached.add(page.run("return document.activeElement.id || document.activeElement.getAttribute('aria-label')"))
    assert {"recent", "whole", "What each worker is doing"} <= reached


def test_a_service_that_is_gone_is_said_and_what_was_seen_stays(
    page: Browser, provider_file: Callable[[str], str]
) -> None:
    service = pydp2.launch(["a"], provider_file(PROVIDER), workers=1, page="127.0.0.1:0")
    try:
        opened(page, service)
        service._process.kill()
        assert wait_until(lambda: page.text("#state").startswith("the service does not answer"))
        assert page.text("#headline") == "No trainer is attached."
    finally:
        service.close()
    assert wait_until(lambda: "no connection to its server" in page.text("#state"))


def test_text_of_a_provider_is_text_and_no_markup(page: Browser, provider_file: Callable[[str], str]) -> None:
    provider = provider_file("""
        import time

        @provider(input_types=[integer_value(9)], pool_size=1)
        def process(settings, filename):
            yield 1
            time.sleep(60)
        """)
    evil = "<img src=x onerror=document.title='hacked'>"
    with (
        pydp2.launch([evil], provider, workers=1, page="127.0.0.1:0") as service,
        service.connect(batch_size=1) as data,
    ):
        next(iter(data))
        opened(page, service)
        assert wait_until(lambda: evil in page.text("#workers"))
        assert page.run("return document.title") == "pydp2"


def test_samples_are_shown_as_pictures_and_text(page: Browser, provider_file: Callable[[str], str]) -> None:
    provider = provider_file("""
        import numpy as np
        from pydp2 import text

        @provider(
            input_types={"photo": dense_vector(768, dtype="uint8", shape=(16, 16, 3)), "words": text()}, pool_size=1
        )
        def process(settings, filename):
            for i in range(500):
                yield {"photo": np.full((16, 16, 3), i % 256, np.uint8), "words": "<i>a text</i>"}
        """)
    with (
        pydp2.launch(["a"], provider, workers=1, page="127.0.0.1:0", page_samples=True) as service,
        service.connect(batch_size=4) as data,
    ):
        stream = iter(data)
        next(stream)
        page.emulate(1280, dark=False)
        page.open(service.page_url or "")
        widths = "return [...document.querySelectorAll('#samples img')].map((image) => image.naturalWidth)"
        assert wait_until(lambda: page.run(widths) == [16, 16, 16], 20)
        shown = "return document.querySelector('#samples img').getBoundingClientRect().width"
        assert 40 <= page.run(shown) <= 200
        assert "<i>a text</i>" in page.text("#samples")
        assert page.run(NAMES) == []
        assert page.run(CONTRAST) == []
