"""The report in a real browser. Needs Chromium (or $CHROMIUM) and its chromedriver; skipped without them."""

import json
import os
import shutil

import pytest

from omniset.report import write
from omniset.report.sets import compose
from test_report import RUNS

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

pytestmark = pytest.mark.slow

HEADER = "//table[caption='Class by class.']//th[button='{}']"


@pytest.fixture(scope="module")
def driver():
    program = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    helper = shutil.which("chromedriver")
    if program is None or helper is None:
        pytest.skip("needs Chromium (apt-get install chromium chromium-driver, or $CHROMIUM) and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for switch in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(helper))
    yield browser
    browser.quit()


@pytest.fixture(scope="module", params=["classes", "many numbers", "17 classes", "evil"])
def address(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp("report"), *compose(*RUNS[request.param]())).as_uri()


@pytest.fixture
def page(driver, address):
    """The page, freshly opened; at the end: no word in the console, and nothing asked of any network."""
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    still = [{"name": "prefers-reduced-motion", "value": "reduce"}]  # a click must not wait for smooth scrolling
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": still})
    for log in ("browser", "performance"):
        driver.get_log(log)
    driver.get(address)
    yield driver
    assert driver.get_log("browser") == []
    asked = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [a["params"]["request"]["url"] for a in asked if a["method"] == "Network.requestWillBeSent"]
    assert asked
    assert {url.split("#")[0] for url in asked if not url.startswith("data:")} == {address}


def column(page, caption, number):
    path = f"//table[caption={caption!r}]/tbody/tr/*[{number}]"
    return [cell.text for cell in page.find_elements(By.XPATH, path)]


def test_no_part_is_wider_than_the_screen(page):
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    for width in (375, 320, 768):
        size = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": True}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        assert page.execute_script("return innerWidth") == width
        assert page.execute_script("return document.documentElement.scrollWidth") == width
        drawings = page.find_elements(By.CSS_SELECTOR, ".half svg")
        assert all(drawing.rect["x"] + drawing.rect["width"] <= width for drawing in drawings)


def test_contents_lead_to_the_sections(page):
    links = page.find_elements(By.CSS_SELECTOR, "nav a")
    assert [a.text for a in links] == [h.text for h in page.find_elements(By.CSS_SELECTOR, "section > h2")]
    for place in (len(links) - 1, 2, 0):
        links[place].click()
        target = page.find_elements(By.TAG_NAME, "section")[place]
        top, bottom = page.execute_script(
            "let r = arguments[0].getBoundingClientRect(); return [r.top, r.bottom]", target
        )
        end = page.execute_script("return scrollY + innerHeight >= document.documentElement.scrollHeight - 1")
        assert -2 <= top < 60 or (end and bottom > 0)


def test_skip_link_is_the_first_stop(page):
    page.switch_to.active_element.send_keys(Keys.TAB)
    link = page.switch_to.active_element
    assert link.text == "Skip to the content"
    assert link.location["x"] >= 0
    link.send_keys(Keys.ENTER)
    assert page.execute_script("return document.activeElement.id") == "page:main"


def test_copy(page):
    page.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    button = page.find_element(By.CSS_SELECTOR, ".command button")
    command = page.find_element(By.CSS_SELECTOR, ".command code").get_property("textContent")
    button.click()
    WebDriverWait(page, 10).until(lambda _: button.text == "Copied")
    assert page.execute_async_script("navigator.clipboard.readText().then(arguments[0])") == command


def test_copy_where_the_clipboard_is_refused(page):
    page.execute_script("navigator.clipboard.writeText = () => Promise.reject(new Error('refused'))")
    command = page.find_element(By.CSS_SELECTOR, ".command code").get_property("textContent")
    button = page.find_element(By.CSS_SELECTOR, ".command button")
    button.click()
    WebDriverWait(page, 10).until(lambda _: button.text in ("Copied", "Press Ctrl+C"))
    assert page.execute_script("return getSelection().toString()").split() == command.split()


def test_print(page):
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not page.find_element(By.TAG_NAME, "nav").is_displayed()
    assert not page.find_element(By.CSS_SELECTOR, ".command button").is_displayed()
    assert page.find_element(By.TAG_NAME, "h1").is_displayed()
    paper = page.execute_cdp_cmd("Page.printToPDF", {})
    assert len(paper["data"]) > 10_000


@pytest.mark.parametrize("address", ["classes"], indirect=True)
def test_sorting(page):
    """By click and by keyboard; numbers as numbers, up and then down; only one column at a time."""
    labels = column(page, "Class by class.", 1)
    shown = page.find_elements(By.XPATH, "//table[caption='Class by class.']/tbody/tr/*[4]")
    recall = dict(zip(labels, [float(cell.get_attribute("data-value")) for cell in shown], strict=True))
    header, button = page.find_element(By.XPATH, HEADER.format("recall")), HEADER.format("recall") + "/button"
    assert header.get_attribute("aria-sort") is None
    page.find_element(By.XPATH, button).click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert column(page, "Class by class.", 1) == sorted(labels, key=recall.get)
    page.find_element(By.XPATH, button).send_keys(Keys.ENTER)
    assert header.get_attribute("aria-sort") == "descending"
    assert column(page, "Class by class.", 1) == sorted(labels, key=recall.get, reverse=True)
    page.find_element(By.XPATH, HEADER.format("class") + "/button").send_keys(Keys.SPACE)
    assert column(page, "Class by class.", 1) == sorted(labels)
    assert header.get_attribute("aria-sort") is None


@pytest.mark.parametrize("address", ["60 classes"], indirect=True)
def test_unknown_values_stay_last(page):
    header = HEADER.format("recall") + "/button"
    for _ in range(2):
        page.find_element(By.XPATH, header).click()
        rows = page.find_elements(By.XPATH, "//table[caption='Class by class.']/tbody/tr/*[4]")
        shown = [cell.get_property("textContent") for cell in rows]  # of rows on other pages too
        known = [value for value in shown if value != "\N{EN DASH}"]
        assert 0 < len(known) < len(shown)
        assert shown[: len(known)] == known


@pytest.mark.parametrize("address", ["60 classes"], indirect=True)
def test_long_tables_are_searched_and_turned_and_wide_ones_lose_columns(page):
    names = [f"class {i}" for i in range(60)]
    block = "//table[caption='{}']/../preceding-sibling::div[@class='tools']"
    tools = page.find_element(By.XPATH, block.format("Class by class."))

    def shown():
        return [text for text in column(page, "Class by class.", 1) if text]

    assert shown() == names[:20]
    tools.find_element(By.XPATH, "./button[2]").click()
    assert shown() == names[20:40]
    assert "21 to 40 of 60" in tools.text
    tools.find_element(By.TAG_NAME, "input").send_keys("CLASS 5")
    assert shown() == [name for name in names if "class 5" in name]
    caption = page.find_element(By.XPATH, "//caption[starts-with(., 'Methods beside ours')]").text
    wide = page.find_element(By.XPATH, block.format(caption))
    wide.find_element(By.TAG_NAME, "summary").click()
    wide.find_elements(By.CSS_SELECTOR, "details input")[1].click()
    assert column(page, caption, 3) == [""]
    assert column(page, caption, 2) != [""]


@pytest.mark.parametrize("address", ["classes"], indirect=True)
def test_what_is_found_is_on_the_first_screen_and_points_have_names(page):
    for width, height in ((1280, 900), (390, 844)):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        figure = page.find_element(By.CSS_SELECTOR, "header figure svg").rect
        assert (
            page.find_element(By.CSS_SELECTOR, ".lead").rect["y"]
            < figure["y"]
            < figure["y"] + figure["height"]
            < height
        )
    points = page.find_elements(By.CSS_SELECTOR, "header svg use > title")
    names = {point.get_property("textContent").split(":")[0] for point in points}
    assert names == {str(number) for number in range(211)}
