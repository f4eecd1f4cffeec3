"""JupyterLab in a headless chromium, as a person meets it: a server, a page with one notebook, and the reward lab on it."""

from __future__ import annotations

import base64
import functools
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no chromium with chromedriver here; on Debian and Ubuntu: apt-get install chromium chromium-driver",
)
# How long anything may take before the test gives up: far more than on a quiet machine, where it is seconds.
PATIENCE = 240.0
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


class Jupyter:
    """A JupyterLab server on a folder, with configuration of its own."""

    def __init__(self, folder: Path, settings_folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = settings_folder / "jupyter.log"
        own = {f"JUPYTER_{kind}_DIR": str(settings_folder / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
        command = [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={self.port}",
            "--ServerApp.port_retries=0", "--allow-root", "--IdentityProvider.token=", f"--notebook-dir={folder}",
            f"--LabApp.workspaces_dir={settings_folder / 'workspaces'}",
            f"--LabApp.user_settings_dir={settings_folder / 'settings'}",
        ]  # fmt: skip
        # Else it asks whether it may fetch news, in front of the page.
        asked = settings_folder / "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
        asked.parent.mkdir(parents=True)
        asked.write_text('{"fetchNews": "false", "checkForUpdates": false}')
        environment = {**os.environ, **own, "PYTHONPATH": str(ROOT)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder)
        self._wait_until_up()

    def _wait_until_up(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"JupyterLab ended: {self.log.read_text()[-3000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api", timeout=5):
                    return
            except OSError:
                time.sleep(0.25)
        self.stop()
        raise RuntimeError(f"JupyterLab did not come up: {self.log.read_text()[-3000:]}")

    def stop(self) -> None:
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
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        self.driver = webdriver.Chrome(options=options, service=Service(executable_path=str(DRIVER)))
        self.driver.set_page_load_timeout(PATIENCE)

    # The notebook.

    def open(self, server: Jupyter, notebook: str) -> None:
        """Open a notebook without the side bars and wait until its kernel is there."""
        self.driver.get(f"http://127.0.0.1:{server.port}/doc/tree/{notebook}?reset")
        self.wait(lambda: self.find(".jp-Notebook .jp-Cell"), "the notebook")
        self.wait(lambda: "| Idle" in self.text(), "the kernel")

    def choose_menu(self, *labels: str) -> None:
        """Choose an item of a menu."""
        css = ".lm-MenuBar-itemLabel"
        for label in labels:
            self.press(functools.partial(self.with_text, css, label), f"{label} in the menu")
            css = ".lm-Menu-itemLabel"

    def run_all(self) -> None:
        """Run all cells by the menu; again, as a person would, if nothing runs because the kernel was not ready."""
        for _ in range(8):
            self.choose_menu("Run", "Run All Cells")
            try:
                self.wait(self._has_run, "a cell that runs", 15)
                return
            except AssertionError:
                continue
        raise AssertionError(f"no cell runs; the page says:\n{self.text()[-3000:]}")

    def _has_run(self) -> bool:
        prompts = "return [...document.querySelectorAll('.jp-InputPrompt')].map(p => p.textContent).join('')"
        return any(mark in self.driver.execute_script(prompts) for mark in "*123456789")

    def run_cell(self, source: str) -> None:
        """Click on the code cell with this in it, press Shift and Enter, and wait for its end."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        before = self._prompt(source)
        self.press(lambda: self._cell(source, " .jp-InputPrompt"), f"the cell {source!r}")
        ActionChains(self.driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
        self.wait(lambda: self._prompt(source) not in (before, "[*]:"), f"the end of the cell {source!r}")

    def _prompt(self, source: str) -> str:
        return self._cell(source, " .jp-InputPrompt").text.strip()

    def output(self, source: str) -> str:
        """Return what can be read under the code cell with this in it."""
        return self._cell(source, " .jp-OutputArea").text

    def _cell(self, source: str, part: str) -> Any:
        find = """
            const cell = [...document.querySelectorAll('.jp-CodeCell')].find(
              c => c.querySelector('.cm-content').textContent.includes(arguments[0]))
            return cell && cell.querySelector(arguments[1].trim())"""
        return self.driver.execute_script(find, source, part)

    # Looking and touching.

    def find(self, css: str) -> Any:
        """Return the first element, or None."""
        found = self.find_all(css)
        return found[0] if found else None

    def find_all(self, css: str) -> list[Any]:
        """Return all elements."""
        return self.driver.find_elements("css selector", css)

    def with_text(self, css: str, text: str) -> Any:
        """Return the visible element with this text, or None."""
        return next((e for e in self.find_all(css) if e.is_displayed() and e.text.strip() == text), None)

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Return what the condition gives once that is true; changes of the page meanwhile do not matter."""
        from selenium.common.exceptions import StaleElementReferenceException

        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if found := condition():
                    return found
            except StaleElementReferenceException:
                pass
            time.sleep(0.1)
        raise AssertionError(f"{what} did not appear in {seconds:g} s; the page says:\n{self.text()[-3000:]}")

    def press(self, find: Callable[[], Any], what: str) -> None:
        """Click on an element as soon as it is there."""
        self.act(find, lambda element: element.click(), what)

    def act(self, find: Callable[[], Any], action: Callable[[Any], object], what: str) -> None:
        """Do something with an element as soon as it is there and can be reached; the lab may replace it at any moment."""
        from selenium.common import exceptions

        moved = exceptions.StaleElementReferenceException
        covered = exceptions.ElementNotInteractableException, exceptions.ElementClickInterceptedException

        def try_it() -> bool:
            element = find()
            if element is None:
                return False
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            try:
                action(element)
            except (moved, *covered):
                return False
            return True

        self.wait(try_it, what)

    def text(self, css: str = "body") -> str:
        """Return what can be read in the first element, "" if there is none."""
        return next(iter(self.texts(css)), "")

    def texts(self, css: str) -> list[str]:
        """Return what can be read in each element, in one look: the lab may replace them at any moment."""
        read = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText.trim())"
        return self.driver.execute_script(read, css)

    # The lab.

    def click(self, text: str) -> None:
        """Click the button of the lab with this text."""
        self.press(lambda: self.button(text), f"the button {text!r}")

    def button(self, text: str) -> Any:
        """Return the button of the lab with this text, or None."""
        return self.with_text(".gn-lab button", text)

    def control(self, label: str) -> Any:
        """Return the input of the lab under this label, or None."""
        find = (
            "return [...document.querySelectorAll('.gn-lab .widget-label')].filter(l => l.textContent.trim() === arguments[0])"
            ".map(l => l.parentElement.querySelector('input, textarea, select'))[0]"
        )
        return self.driver.execute_script(find, label)

    def value(self, label: str) -> str:
        """Return what stands in the input under this label."""
        return self.wait(lambda: self.control(label), f"the control {label!r}").get_attribute("value")

    def write(self, label: str, text: str) -> None:
        """Replace the text of a control by typing, and leave it."""
        from selenium.webdriver.common.keys import Keys

        def type_it(box: Any) -> None:
            box.click()
            box.send_keys(Keys.CONTROL, "a")
            box.send_keys(text or Keys.DELETE, Keys.TAB)

        self.act(lambda: self.control(label), type_it, f"the control {label!r}")

    def scores(self) -> list[dict[str, str]]:
        """Return the table of scores as it stands on the page, a dict for each line."""
        read = """
            return [...document.querySelectorAll('.gn-scores tbody tr')].map(line => {
              const row = {}
              line.querySelectorAll('[data-reward]').forEach(cell => { row[cell.dataset.reward] = cell.innerText.trim() })
              row.total = line.querySelector('.gn-total').innerText.trim()
              row.advantage = line.querySelector('.gn-advantage').innerText.trim()
              row.push = line.querySelector('.gn-push').innerText.trim()
              return row
            })"""
        return self.driver.execute_script(read)

    # How it looks.

    def overflowing(self) -> list[str]:
        """Return what of the lab is wider than the lab, cut off or scrolled sideways, apart from what is meant to be."""
        read = """
            const lab = document.querySelector('.gn-lab'), edge = lab.getBoundingClientRect().right + 1
            const meant = '.gn-scroll, .gn-scroll *, pre, pre *, textarea, style, select, option'
            const wide = [...lab.querySelectorAll('*')].filter(e => !e.matches(meant)
              && (e.getBoundingClientRect().right > edge
                || (['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth + 1
                  && getComputedStyle(e).textOverflow !== 'ellipsis')))
            return wide.map(e => e.tagName + '.' + e.className + ' ' + e.scrollWidth + ' in ' + e.clientWidth)"""
        return self.driver.execute_script(read)

    def faint_texts(self, least: float = 4.5) -> list[str]:
        """Return texts of the lab with less contrast to their ground than this, which is what WCAG 2.1 asks for (1.4.3)."""
        read = """
            const linear = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4
            const light = c => { const l = c.slice(0, 3).map(linear)
              return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2] }
            const parts = s => { const p = s.match(/[\\d.]+/g).map(Number); return p.length < 4 ? [...p, 1] : p }
            const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3]))
            const ground = e => { const layers = []
              for (let p = e; p; p = p.parentElement) layers.push(parts(getComputedStyle(p).backgroundColor))
              return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]) }
            const bad = []
            for (const e of document.querySelectorAll('.gn-lab *')) {
              if (e.matches('style, option') || e.closest('[disabled], .jp-mod-current') || !e.offsetParent) continue
              const hasText = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())
              if (!hasText && !e.matches('input, textarea')) continue
              // The colours of buttons, tabs and reports of other modules are not the lab's.
              if (e.closest('button, .lm-TabBar, .gn-report table')) continue
              let opacity = 1
              for (let p = e; p; p = p.parentElement) opacity *= getComputedStyle(p).opacity
              const behind = ground(e), ink = parts(getComputedStyle(e).color)
              ink[3] *= opacity
              const [a, b] = [light(over(ink, behind)), light(behind)].sort((x, y) => y - x)
              const ratio = (a + 0.05) / (b + 0.05)
              if (ratio < arguments[0]) bad.push(ratio.toFixed(1) + ' ' + e.tagName + '.' + e.className + ': '
                + e.textContent.slice(0, 40))
            }
            return [...new Set(bad)]"""
        return self.driver.execute_script(read, least)

    def screenshot(self, path: Path, css: str = ".gn-lab") -> None:
        """Save a picture of the lab from top to bottom."""
        element, before = self.find(css), self.driver.get_window_size()
        # The notebook scrolls inside the page: grow the window until all of the lab is on it.
        height = int(self.driver.execute_script("return arguments[0].scrollHeight", element))
        self.driver.set_window_size(before["width"], min(height + 420, 5000))
        is_in_view = """
            arguments[0].scrollIntoView({block: 'start'})
            return arguments[0].getBoundingClientRect().bottom <= window.innerHeight"""
        self.wait(lambda: self.driver.execute_script(is_in_view, element) or height > 4500, "the whole lab", 20)
        path.write_bytes(base64.b64decode(element.screenshot_as_base64))
        self.driver.set_window_size(before["width"], before["height"])

    def set_theme(self, name: str) -> None:
        """Choose a theme in the settings menu."""
        self.choose_menu("Settings", "Theme", name)
        is_light = "true" if "Light" in name else "false"
        self.wait(lambda: self.find(f"body[data-jp-theme-light={is_light}]"), f"the theme {name}")

    def looks(self) -> Iterator[tuple[str, int]]:
        """Show the page in both themes, wide and narrow: (theme, width), each as it is shown."""
        for theme in ("JupyterLab Dark", "JupyterLab Light"):
            self.set_theme(theme)
            for width in (1200, 700):
                self.driver.set_window_size(width, 1000)
                self.wait(
                    lambda width=width: self.driver.execute_script("return window.innerWidth") == width, "the width"
                )
                yield theme, width

    def close(self) -> None:
        """Close the browser."""
        self.driver.quit()


def write_notebook(path: Path, *cells: str) -> None:
    """Write a notebook with these code cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
