"""Pages in headless Chromium, as the tests of pages and `benchmarks/rollout_page.py` open them."""

import json
import shutil

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "no chromium and chromedriver; on Debian: apt-get install chromium chromium-driver"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip


def start():
    """A driver that logs the console and every request."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in FLAGS:
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


def load(driver, path, width=1200, scheme="light", fragment=""):
    device = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    if fragment:
        driver.get("about:blank")  # else only the fragment would change, and nothing would be loaded
    driver.get(path.as_uri() + fragment)


def requests(driver):
    """The addresses asked for since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def loads_alone(driver, path):
    """Opens a page; it must say nothing on the console and ask for nothing but itself."""
    driver.get_log("browser"), requests(driver)  # of pages before this one
    load(driver, path)
    assert driver.get_log("browser") == []
    asked = requests(driver)
    assert path.as_uri() in asked
    assert all(address == path.as_uri() or address.startswith("data:") for address in asked)


def js(browser, code, *arguments):
    return browser.execute_script("return " + code, *arguments)


def each(browser, selector, what):
    """Of all such nodes `n`."""
    return js(browser, f"[...document.querySelectorAll(arguments[0])].map(n => {what})", selector)


def text(browser, selector):
    return js(browser, "document.querySelector(arguments[0]).textContent", selector)


def press(browser, *keys):
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*keys).perform()
