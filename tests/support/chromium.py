"""A real Chromium, driven over its own protocol, that reaches only the hosts it is given."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Browser:
    """Open an address, then ask it what it did."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, *, dark: bool = False, width: int = 1080) -> None:
        media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get("about:blank")  # the page before, which renews itself, asks for nothing any more
        for log in ("browser", "performance"):  # reading empties them
            self.driver.get_log(log)
        self.driver.get(url)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def wait(self, script: str, seconds: float = 90) -> Any:
        until = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < until, f"{script} was never true"
            time.sleep(0.2)
        return found

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Every address the page asked for, its own first."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent]


@contextmanager
def chromium(*, hosts: str = "") -> Iterator[Browser]:
    """A Chromium that finds ``hosts`` and no other; skips where there is none, never in CI."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        if os.environ.get("CI") == "true":
            pytest.fail("chromium and chromedriver are missing, and CI must not skip")
        pytest.skip("chromium and chromedriver are not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(programs[0])
    for flag in (
        "--headless=new",
        "--no-sandbox",  # a container's root has no other way
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND" + (f", EXCLUDE {hosts}" if hosts else ""),
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(programs[1]))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
