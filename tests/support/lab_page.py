"""JupyterLab in a headless chromium: a server, a page with one notebook, and the lab on it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from selenium import webdriver
from selenium.common import exceptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no chromium with chromedriver here; "
    "on Debian and Ubuntu: apt-get install chromium chromium-driver",
)
# How long anything may take before the test gives up: far more than on a quiet machine, where it is
# seconds.
PATIENCE = 240.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
# What an element may be at a moment: replaced, not yet there, under another one.
_MOVING = (
    exceptions.StaleElementReferenceException,
    exceptions.ElementNotInteractableException,
    exceptions.ElementClickInterceptedException,
    exceptions.NoSuchElementException,
)


class Jupyter:
    """A JupyterLab server on a folder, with configuration of its own."""

    def __init__(self, folder: Path, settings_folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = folder
        self.log = settings_folder / "jupyter.log"
        folder.mkdir(exist_ok=True)
        own = {
            f"JUPYTER_{kind}_DIR": str(settings_folder / kind.lower())
            for kind in ("CONFIG", "DATA", "RUNTIME")
        }
        command = [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--ip=127.0.0.1",
            f"--port={self.port}",
            "--ServerApp.port_retries=0",
            "--allow-root",
            "--IdentityProvider.token=",
            f"--notebook-dir={folder}",
            f"--LabApp.workspaces_dir={settings_folder / 'workspaces'}",
            f"--LabApp.user_settings_dir={settings_folder / 'settings'}",
        ]
        # Else it asks whether it may fetch news, in front of the page.
        asked = (
            settings_folder
            / "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
        )
        asked.parent.mkdir(parents=True)
        asked.write_text('{"fetchNews": "false", "checkForUpdates": false}')
        environment = {**os.environ, **own, "PYTHONPATH": str(ROOT)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder
            )
        end = time.monotonic() + PATIENCE
        while not self._is_up():
            if self.process.poll() is not None or time.monotonic() > end:
                self.close()
                raise RuntimeError(f"JupyterLab did not come up: {self.log.read_text()[-3000:]}")
            time.sleep(0.25)

    def _is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api", timeout=5):
                return True
        except OSError:
            return False

    def close(self) -> None:
        """End the server and with it its kernels."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class LabPage:
    """One notebook in the browser; methods are what a person does and sees."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 1000) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        self.driver = webdriver.Chrome(
            options=options, service=Service(executable_path=str(DRIVER))
        )
        self.driver.set_page_load_timeout(PATIENCE)
        self.run = self.driver.execute_script

    # The notebook.

    def open(self, server: Jupyter, notebook: str) -> None:
        """Open a notebook without the side bars and wait until its kernel is there."""
        self.driver.get(f"http://127.0.0.1:{server.port}/doc/tree/{notebook}?reset")
        self.wait(lambda: self.find(".jp-Notebook .jp-Cell"), "the notebook")
        self.wait(lambda: "| Idle" in self.text(), "the kernel")

    def choose_menu(self, *labels: str) -> None:
        """Choose an item of a menu."""
        places = [".lm-MenuBar-itemLabel", *[".lm-Menu-itemLabel"] * (len(labels) - 1)]
        for css, label in zip(places, labels, strict=True):
            self.act(
                functools.partial(self.with_text, css, label),
                WebElement.click,
                f"{label} in the menu",
            )

    def run_all(self) -> None:
        """Run all cells from the menu, and again if the kernel was not ready."""
        for patience in (15, 15, 15, 15, PATIENCE):
            self.choose_menu("Run", "Run All Cells")
            with contextlib.suppress(AssertionError):
                return self.wait(
                    lambda: re.search("[*1-9]", "".join(self.texts(".jp-InputPrompt"))),
                    "a run",
                    patience,
                )
        raise AssertionError(f"no cell runs; the page says:\n{self.text()[-3000:]}")

    def run_cell(self, source: str) -> None:
        """Click on the code cell with this in it, press Shift and Enter, and wait for its end."""
        before = self._part(source, ".jp-InputPrompt").text
        self.act(
            lambda: self._part(source, ".jp-InputPrompt"), WebElement.click, f"the cell {source!r}"
        )
        ActionChains(self.driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(
            Keys.SHIFT
        ).perform()

        def is_done() -> bool:
            return self._part(source, ".jp-InputPrompt").text not in (before, "[*]:")

        self.wait(is_done, f"the end of the cell {source!r}")

    def output(self, source: str) -> str:
        """Return what can be read under the code cell with this in it."""
        return self._part(source, ".jp-OutputArea").text

    def _part(self, source: str, css: str) -> WebElement:
        cells = self.driver.find_elements("css selector", ".jp-CodeCell")
        # A cell far outside the view has no editor yet.
        script = "return arguments[0].map(c => c.querySelector('.cm-content')?.textContent ?? '')"
        texts = self.run(script, cells)
        return next(c for c, text in zip(cells, texts, strict=True) if source in text).find_element(
            "css selector", css
        )

    # Looking and touching.

    def find(self, css: str) -> WebElement | None:
        """Return the first element, or None."""
        return next(iter(self.driver.find_elements("css selector", css)), None)

    def with_text(self, css: str, text: str) -> WebElement | None:
        """Return the visible element with this text, or None."""
        found = self.driver.find_elements("css selector", css)
        return next((e for e in found if e.is_displayed() and e.text.strip() == text), None)

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Wait until the condition is true and return its value; the lab may replace elements."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(*_MOVING):
                if found := condition():
                    return found
            time.sleep(0.1)
        raise AssertionError(
            f"{what} did not appear in {seconds:g} s; the page says:\n{self.text()[-3000:]}"
        )

    def act(self, find: Callable[[], Any], action: Callable[[Any], object], what: str) -> None:
        """Do something with an element as soon as it is there and can be reached."""

        def try_it() -> bool:
            if element := find():
                self.run("arguments[0].scrollIntoView({block: 'center'})", element)
                action(element)
            return element is not None

        self.wait(try_it, what)

    def text(self, css: str = "body") -> str:
        """Return what can be read in the first element, "" if there is none."""
        return next(iter(self.texts(css)), "")

    def texts(self, css: str) -> list[str]:
        """Return the text of each element, read at one moment: the lab may replace elements."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText.trim())", css
        )

    # The lab.

    def click(self, text: str) -> None:
        """Click the button of the lab with this text."""
        self.act(
            lambda: self.with_text(".gn-panel button", text),
            WebElement.click,
            f"the button {text!r}",
        )

    def control(self, label: str) -> WebElement | None:
        """Return the input of the lab under this label, or None."""
        is_label = f"contains(@class, 'widget-label')][normalize-space() = '{label}'"
        labelled = f"//*[contains(@class, 'gn-panel')]//*[{is_label}]"
        found = self.driver.find_elements(
            "xpath", f"{labelled}/..//*[self::input or self::textarea or self::select]"
        )
        return next(iter(found), None)

    def value(self, label: str) -> str:
        """Return what stands in the input under this label."""
        return self.wait(lambda: self.control(label), f"the control {label!r}").get_attribute(
            "value"
        )

    def write(self, label: str, text: str) -> None:
        """Replace the text of a control by typing, and leave it."""

        def type_it(box: WebElement) -> None:
            box.click()
            box.send_keys(Keys.CONTROL, "a")
            box.send_keys(text or Keys.DELETE, Keys.TAB)

        self.act(lambda: self.control(label), type_it, f"the control {label!r}")

    def scores(self) -> list[dict[str, str]]:
        """Return the table of scores as it stands on the page, a dict for each line."""
        read = """
            const columns = /gn-(total|advantage|push)/
            const name = cell => cell.dataset.reward || cell.className.match(columns)[1]
            const lines = [...document.querySelectorAll('.gn-scores tbody tr')]
            return lines.map(line => Object.fromEntries(
              [...line.querySelectorAll('[data-reward], .gn-total, .gn-advantage, .gn-push')].map(
                cell => [name(cell), cell.innerText.trim()])))"""
        return self.run(read)

    def screenshot(self, css: str = ".gn-panel") -> bytes:
        """Return a picture (PNG) of the lab from top to bottom."""
        element = self.find(css)
        before = self.driver.get_window_size()
        # The notebook scrolls inside the page: grow the window until all of the lab is on it.
        height = int(self.run("return arguments[0].scrollHeight", element))
        self.driver.set_window_size(before["width"], min(height + 420, 5000))
        is_in_view = """
            arguments[0].scrollIntoView({block: 'start'})
            return arguments[0].getBoundingClientRect().bottom <= window.innerHeight"""
        self.wait(lambda: self.run(is_in_view, element) or height > 4500, "the whole lab", 20)
        picture = element.screenshot_as_png
        self.driver.set_window_size(before["width"], before["height"])
        return picture

    def close(self) -> None:
        """Close the browser."""
        self.driver.quit()


def write_notebook(path: Path, *cells: str) -> None:
    """Write a notebook with these code cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(notebook, path)
