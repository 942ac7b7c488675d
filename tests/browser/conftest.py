"""A headless Chromium for the tests of pages, without a network to fall back on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # containers run the tests as root, where Chromium's own sandbox does not start
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-component-update",
    "--disable-background-networking",
    "--window-size=1280,1000",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Chrome]:
    """Chromium that keeps what the page says on its console and asks of the network."""
    programs = [shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")]
    if None in programs:
        reason = "no chromium and chromedriver on the PATH; on Debian: apt-get install chromium chromium-driver"
        # launch/test.sh installs them where CI runs: there a missing browser is a fault, not a circumstance.
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    options = ChromeOptions()
    options.binary_location = str(programs[0])
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(str(programs[1])))
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()
