"""What the browser tests ask of a page."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.remote.webelement import WebElement


class Page:
    """A page in the browser, and everything that it said and asked for since it was opened."""

    def __init__(self, browser: Chrome) -> None:
        self.browser = browser
        self.said: list[str] = []
        self.requests: list[str] = []

    def open(self, place: Path | str) -> Page:
        """Opens a local file or an address as a user does, and forgets what an earlier page said."""
        self.look(1280, "light")
        self.browser.get("about:blank")
        self.listen()
        self.said, self.requests = [], []
        self.browser.get(place if isinstance(place, str) else place.resolve().as_uri())
        self.settle()
        return self

    def listen(self) -> None:
        """Takes over what the logs have by now."""
        self.said += [entry["message"] for entry in self.browser.get_log("browser")]
        for entry in self.browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])

    def look(self, width: int, theme: str) -> None:
        """Sets the width of the screen in CSS pixels, and the theme that the system asks for."""
        screen = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        asked = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", asked)

    def picture(self) -> bytes:
        """The whole page as a PNG."""
        asked = {"format": "png", "captureBeyondViewport": True}
        return base64.b64decode(self.browser.execute_cdp_cmd("Page.captureScreenshot", asked)["data"])

    def settle(self) -> None:
        """Waits until the frames that a change asked for are drawn."""
        self.browser.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )

    def busy_seconds(self) -> float:
        """CPU time of the page's main thread so far: scripts, styles, layout and painting."""
        self.browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        metrics = self.browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return float({metric["name"]: metric["value"] for metric in metrics}["TaskDuration"])

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a script, run in the page."""
        return self.browser.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        """The elements that a CSS selector finds."""
        return self.browser.find_elements("css selector", selector)

    def one(self, selector: str) -> WebElement:
        """The first element that a CSS selector finds."""
        return self.browser.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """The texts of the elements that a CSS selector finds, in one go."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
        )
        return found

    def click(self, selector: str) -> None:
        """Clicks an element and waits until the page has answered."""
        self.one(selector).click()
        self.settle()

    def write(self, selector: str, text: str) -> None:
        """Replaces the text of an input."""
        field = self.one(selector)
        field.clear()
        field.send_keys(text or " \b")
        self.settle()

    def hover(self, element: WebElement, left: float, top: float) -> ActionChains:
        """Moves the pointer to a place in an element, in pixels from its upper left corner."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        size = element.size
        chain = ActionChains(self.browser)
        chain.move_to_element_with_offset(element, int(left - size["width"] / 2), int(top - size["height"] / 2))
        chain.perform()
        self.settle()
        return ActionChains(self.browser)


def soon(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether something comes to hold in time."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
