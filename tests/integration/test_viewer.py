"""The viewer and the curves in a real headless Chromium: what a person sees, clicks and presses."""

from __future__ import annotations

import http.client
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rollout_samples import HOSTILE, QUESTION, plain_rollout, sample_records, search_rollout, write_run

from research_plugin.cli import main
from research_plugin.viewer.serve import make_server

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason=f"no Chromium ({', '.join(NAMES)}); Debian: apt-get install chromium-headless-shell"
)
MANY = 50_000


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def sample_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The run's name is text, too.
    run = write_run(tmp_path_factory.mktemp("viewer") / "<img src=x onerror=alert(1)>", sample_records())
    assert main(["view", str(run)]) == 0
    return run / "viewer.html"


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("large"), [plain_rollout(number) for number in range(MANY)])
    assert main(["view", str(run)]) == 0
    return run / "viewer.html"


class Page:
    """An open page and everything that it did but should not have: errors, requests, dialogs."""

    def __init__(self, browser: playwright.Browser, url: str, width: int, height: int = 800) -> None:
        self.faults: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": height})
        self.page.on("console", lambda message: self.faults.append(message.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.faults.append(dialog.message), dialog.dismiss()))
        origin = url.split("#")[0]
        self.page.on("request", lambda sent: sent.url.startswith(origin) or self.faults.append(sent.url))
        self.page.set_default_timeout(20_000)
        self.page.goto(url)

    def questions(self) -> list[str]:
        return self.page.locator(".row .question").all_inner_texts()

    def title(self) -> str:
        return self.page.locator("#page h2").inner_text()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)


@pytest.fixture
def open_page(browser: playwright.Browser) -> Iterator[object]:
    opened: list[Page] = []

    def open_it(url: str, width: int = 1280) -> Page:
        opened.append(Page(browser, url, width))
        return opened[-1]

    yield open_it
    for page in opened:
        page.page.close()
        assert page.faults == []


def wait_for_count(page: Page, text: str) -> None:
    playwright.expect(page.page.locator("#count")).to_have_text(text, timeout=20_000)


def test_opens_without_network_and_shows_the_newest_step(open_page, sample_file: Path) -> None:
    page = open_page(sample_file.as_uri())
    wait_for_count(page, "6 rollouts")
    assert page.page.locator("h1").inner_text() == "<img src=x onerror=alert(1)>"
    assert page.questions() == [QUESTION, QUESTION, QUESTION, HOSTILE, "Question 2?", "Question 1?"]
    playwright.expect(page.page.locator("#page h2")).to_have_text(QUESTION)
    assert page.page.locator("#page .block h3").all_inner_texts() == [
        name.upper() for name in ("Think", "Search", "Result", "Think", "Answer")
    ]
    facts = page.page.locator("dl.facts").inner_text().split("\n")
    assert [facts[facts.index(name) + 1] for name in ("Score", "Why", "Prediction", "Advantage", "Ended by")] == [
        "1",
        "answer matches",
        "Torvik",
        "+0.45",
        "answered",
    ]


def test_filters_and_sort(open_page, sample_file: Path) -> None:
    page = open_page(sample_file.as_uri())
    wait_for_count(page, "6 rollouts")
    for name, value, left in [
        ("#text", "who wrote", [QUESTION] * 3),
        ("#text", "GOLD 2", ["Question 2?"]),
        ("#step-min", "12", [QUESTION] * 3),
        ("#step-max", "1", ["Question 1?"]),
        ("#score-min", "0.5", [QUESTION] * 2),
        ("#score-max", "0", [HOSTILE, "Question 1?"]),
    ]:
        page.page.fill(name, value)
        assert page.questions() == left, name
        page.page.fill(name, "")
    for name, value, left in [
        ("#split", "train", [QUESTION] * 3),
        ("#stop", "max_length", [HOSTILE, "Question 2?", "Question 1?"]),
        ("#searches", "1", [QUESTION] * 3),
    ]:
        page.page.select_option(name, value)
        assert page.questions() == left, name
        page.page.select_option(name, "")
    page.page.check("#failed")
    assert page.questions() == [QUESTION, HOSTILE, "Question 1?"]
    page.page.select_option("#sort", "worst")
    assert page.questions() == ["Question 1?", HOSTILE, QUESTION]
    wait_for_count(page, "3 of 6 rollouts")
    page.page.click("#reset")
    wait_for_count(page, "6 rollouts")
    page.page.fill("#text", "mara velden taught")
    playwright.expect(page.page.locator("#none")).to_be_visible()
    page.page.check("#deep")
    wait_for_count(page, "3 of 6 rollouts")


def test_keys(open_page, sample_file: Path) -> None:
    page = open_page(sample_file.as_uri())
    wait_for_count(page, "6 rollouts")
    place = page.page.locator("#page .place")
    expect = playwright.expect
    expect(place).to_have_text("step 12 · train · rollout 1 of 3 of its group")
    page.press("n")
    expect(place).to_have_text("step 12 · train · rollout 2 of 3 of its group")
    page.press("p")
    expect(place).to_have_text("step 12 · train · rollout 1 of 3 of its group")
    page.press("f", "f")
    expect(page.page.locator("#page h2")).to_have_text(HOSTILE)
    page.press("f")
    expect(page.page.locator("#page h2")).to_have_text("Question 1?")
    page.press("n", "f")  # there is no other
    expect(page.page.locator("#page h2")).to_have_text("Question 1?")
    page.page.get_by_role("button", name="Previous rollout").click()
    expect(page.page.locator("#page h2")).to_have_text("Question 2?")
    page.press("/", "n", "m")
    assert page.page.input_value("#text") == "nm"
    expect(page.page.get_by_role("button", name="Loss mask")).to_have_attribute("aria-pressed", "false")
    page.press("Escape")
    assert page.page.evaluate("document.activeElement.id") == "list"
    button = page.page.get_by_role("button", name="Loss mask")
    button.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(button).to_be_focused()
    keys = page.page.locator("footer span").all_inner_texts()
    assert keys == ["n next", "p previous", "f next failed", "m loss mask", "g group", "/ search", "Esc list"]


@pytest.mark.parametrize(
    ("number", "expected"), [(1, {0.1, 0.4, 0.54, 0.7}), (2, {0.1, 0.18, 0.28, 0.4})], ids=["unsure", "sure"]
)
def test_the_mask_is_the_records_token_for_token(
    open_page, sample_file: Path, number: int, expected: set[float]
) -> None:
    page = open_page(f"{sample_file.as_uri()}#{number}")
    wait_for_count(page, "6 rollouts")
    page.press("m")
    page.page.wait_for_selector(".tokens")
    shown = page.page.eval_on_selector_all(
        ".tokens .token", "nodes => nodes.map((node) => [node.textContent, Number(node.classList.contains('own'))])"
    )
    tokens = sample_records()[number].tokens
    assert [tuple(each) for each in shown] == list(zip(tokens.texts, tokens.mask, strict=True))
    shades = page.page.eval_on_selector_all(
        ".tokens .token.own",
        "nodes => nodes.map((node) => Number(/, ([\\d.]+)\\)/.exec(getComputedStyle(node).backgroundColor)[1]))",
    )
    # The less likely a token was, the deeper is its shade.
    logs = [log for log, own in zip(tokens.log_probs, tokens.mask, strict=True) if own]
    ordered = [shade for _, shade in sorted(zip(logs, shades, strict=True), reverse=True)]
    assert ordered == sorted(shades)
    assert set(shades) == expected
    assert (
        page.page.locator(".legend")
        .inner_text()
        .endswith(f"{sum(tokens.mask)} of {len(tokens.mask)} tokens are trained on.")
    )


def test_a_record_without_tokens_is_shown_by_who_wrote_what(open_page, tmp_path: Path) -> None:
    record = search_rollout(0, "Torvik", 1.0)
    record.tokens = None
    assert main(["view", str(write_run(tmp_path, [record]))]) == 0
    page = open_page((tmp_path / "viewer.html").as_uri())
    wait_for_count(page, "1 rollout")
    page.press("m")
    page.page.wait_for_selector(".tokens")
    assert page.page.locator(".tokens .env").text_content() == record.segments[1][0]
    assert page.page.locator(".tokens").text_content() == record.response


def test_hostile_text_stays_text(open_page, sample_file: Path) -> None:
    page = open_page(sample_file.as_uri())
    wait_for_count(page, "6 rollouts")
    assert HOSTILE in page.page.locator("#page .result .said").last.text_content()
    page.press("f", "f")
    playwright.expect(page.page.locator("#page h2")).to_have_text(HOSTILE)
    assert page.page.locator("#page .answer .said").text_content() == f"<answer>{HOSTILE}</answer>"
    page.page.locator("#page .fold summary").first.click()
    page.press("m")
    page.page.wait_for_selector(".tokens")
    page.page.fill("#text", HOSTILE)
    assert page.questions() == [HOSTILE]
    page.page.wait_for_timeout(200)
    assert page.page.evaluate("window.hit") is None
    assert page.page.locator("img, #page script, #list script, #page b").count() == 0


def test_a_group_side_by_side(open_page, sample_file: Path) -> None:
    page = open_page(sample_file.as_uri())
    wait_for_count(page, "6 rollouts")
    page.press("n", "g")
    columns = page.page.locator(".column")
    playwright.expect(columns).to_have_count(3)
    heads = [text.split(" · ")[0] for text in page.page.locator(".column > .facts").all_inner_texts()]
    assert heads == ["advantage +0.45", "advantage \N{MINUS SIGN}0.45", "advantage +0.45"]
    assert "here" in columns.nth(1).get_attribute("class")
    page.page.get_by_role("button", name="Rollout 3").click()
    playwright.expect(page.page.locator("#page .place")).to_have_text("step 12 · train · rollout 3 of 3 of its group")
    assert columns.count() == 0


def test_gold_answers_are_marked_and_documents_fold(open_page, sample_file: Path) -> None:
    page = open_page(sample_file.as_uri())
    wait_for_count(page, "6 rollouts")
    assert page.page.locator(".result mark").all_inner_texts() == ["Torvik"]
    holders = page.page.locator(".result .fold", has_text="holds the answer").locator("summary span")
    assert holders.all_inner_texts() == ["2", "Mara Velden", "holds the answer"]
    document = page.page.locator(".result .fold").first
    said = document.locator(".said")
    assert said.is_visible()
    document.locator("summary").click()
    assert not said.is_visible()


def test_fifty_thousand_rollouts(open_page, large_file: Path) -> None:
    page = open_page(large_file.as_uri())
    wait_for_count(page, "50,000 rollouts")
    assert page.questions()[0] == f"Question {MANY - 1}?"
    assert page.page.evaluate("document.querySelectorAll('*').length") < 1500
    page.page.evaluate("document.getElementById('list').scrollTop = 1e9")
    last = page.page.locator(f"[aria-posinset='{MANY}']")
    last.click()
    playwright.expect(page.page.locator("#page h2")).to_have_text("Question 0?")
    playwright.expect(page.page.locator("#page .answer .said")).to_have_text("<answer> guess 0 </answer>")
    assert page.page.locator(".row").count() < 40
    page.page.fill("#text", "question 31415?")
    assert page.questions() == ["Question 31415?"]
    page.page.locator(".row").click()
    playwright.expect(page.page.locator("#page .answer .said")).to_have_text("<answer> guess 31415 </answer>")


def test_names_and_narrow_screens(open_page, sample_file: Path) -> None:
    page = open_page(sample_file.as_uri(), width=400)
    wait_for_count(page, "6 rollouts")
    assert page.page.locator("#list").is_visible()
    assert not page.page.locator("#page").is_visible()
    page.page.locator("#more summary").click()
    unnamed = page.page.evaluate(
        "[...document.querySelectorAll('input, select, button')].filter((node) => !(node.labels?.length"
        " || node.getAttribute('aria-label') || node.textContent.trim())).length"
    )
    assert unnamed == 0
    page.page.locator(".row").nth(1).click()
    assert page.page.locator("#page").is_visible()
    for key in ("m", "g"):
        page.press(key)
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 400
    page.page.get_by_role("button", name="List").click()
    assert page.page.locator("#list").is_visible()
    assert page.page.locator("#list [role=option][aria-selected=true]").count() == 1


def test_back_returns_to_the_rollout_before_and_to_the_list(open_page, sample_file: Path) -> None:
    page = open_page(sample_file.as_uri(), width=400)
    wait_for_count(page, "6 rollouts")
    page.page.locator(".row").nth(3).click()
    page.press("n")
    assert page.title() == "Question 2?"
    page.page.go_back()
    playwright.expect(page.page.locator("#page h2")).to_have_text(HOSTILE)
    page.page.go_back()
    playwright.expect(page.page.locator("#list")).to_be_visible()
    page.page.go_forward()
    playwright.expect(page.page.locator("#page h2")).to_be_visible()
    assert page.title() == HOSTILE


def test_an_answer_as_long_as_a_document_is_shown(open_page, tmp_path: Path) -> None:
    record = search_rollout(0, "Torvik", 1.0)
    record.golden_answers = ["x" * 1_000_000, "Torvik"]
    assert main(["view", str(write_run(tmp_path, [record]))]) == 0
    page = open_page((tmp_path / "viewer.html").as_uri())
    playwright.expect(page.page.locator(".result mark")).to_have_text("Torvik")


@pytest.fixture
def live_run(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    run = write_run(tmp_path / "run", [search_rollout(0, "Torvik", 1.0)])
    server = make_server(run, "run", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield run, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_live_run_grows(open_page, live_run: tuple[Path, str]) -> None:
    run, url = live_run
    page = open_page(url)
    wait_for_count(page, "1 rollout · live")
    playwright.expect(page.page.locator("#page h2")).to_have_text(QUESTION)
    with (run / "records" / "train_000001.jsonl").open("a", encoding="utf-8") as out:
        out.write(plain_rollout(13, split="train").to_line()[:-5])  # a line that is being written
        out.flush()
        page.page.wait_for_timeout(2500)
        wait_for_count(page, "1 rollout · live")
        out.write(plain_rollout(13, split="train").to_line()[-5:] + "\n")
    wait_for_count(page, "2 rollouts · live")
    assert page.questions() == ["Question 13?", QUESTION]
    page.page.locator(".row").first.click()
    playwright.expect(page.page.locator("#page .answer .said")).to_have_text("<answer> guess 13 </answer>")


def test_the_address_of_a_rollout_far_down_a_live_run(open_page, live_run: tuple[Path, str]) -> None:
    run, url = live_run
    lines = (plain_rollout(number, split="train").to_line() for number in range(5_500))
    (run / "records" / "train_000002.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    page = open_page(f"{url}#5400")  # the first answer of the server does not hold it
    playwright.expect(page.page.locator("#page h2")).to_have_text("Question 5399?")
    assert page.page.url.endswith("#5400")


def test_a_resumed_run_replaces_its_last_steps(open_page, live_run: tuple[Path, str]) -> None:
    run, url = live_run
    page = open_page(url)
    wait_for_count(page, "1 rollout · live")
    path = run / "records" / "train_000001.jsonl"
    again = path.with_suffix(".part")
    again.write_text("".join(f"{plain_rollout(number, split='train').to_line()}\n" for number in (1, 2)))
    again.replace(path)
    wait_for_count(page, "2 rollouts · live")
    assert page.questions() == ["Question 2?", "Question 1?"]
    playwright.expect(page.page.locator("#page h2")).to_have_text("Question 2?")


def test_the_server_answers_to_loopback_names_only(live_run: tuple[Path, str]) -> None:
    host = live_run[1].split("/")[2]
    statuses = {}
    for name in (host, "localhost", "rebound.example"):
        connection = http.client.HTTPConnection(host, timeout=10)
        connection.request("GET", "/rows?from=0", headers={"Host": name})
        statuses[name] = connection.getresponse().status
        connection.close()
    assert statuses == {host: 200, "localhost": 200, "rebound.example": 403}


def test_curves_page(open_page, tmp_path: Path) -> None:
    for name, offset in (("first", 0.0), ("second", 0.25)):
        (tmp_path / name).mkdir()
        rows = (
            f'{{"step":{step},"data":{{"critic/score/mean":{step / 8 + offset},"val-core/a/reward/mean@1":0.5}}}}'
            for step in range(5)
        )
        (tmp_path / name / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    runs = [str(tmp_path / "first"), f"<b>2</b>={tmp_path / 'second'}"]
    assert main(["report", "curves", *runs, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "curves.svg").read_text(encoding="utf-8")
    page = open_page((tmp_path / "curves.html").as_uri())
    values = page.page.locator(".card .values b")
    assert values.all_inner_texts() == ["0.5", "0.5", "0.75", "0.5"]
    page.page.locator(".card svg").hover()
    playwright.expect(page.page.locator("#step")).to_have_text("Step 2")
    assert values.all_inner_texts() == ["0.25", "0.5", "0.5", "0.5"]
    page.press("ArrowRight")
    assert values.all_inner_texts() == ["0.375", "0.5", "0.625", "0.5"]
    page.page.get_by_role("button", name="first").click()
    assert values.all_inner_texts() == ["0.75", "0.5"]
    assert page.page.locator(".curve").count() == 2
    assert page.page.locator("#legend button").last.inner_text() == "<b>2</b>"


def test_curves_axes_have_round_numbers(open_page, tmp_path: Path) -> None:
    rows = (f'{{"step":{step},"data":{{"critic/score/mean":{-1.9 + step / 8}}}}}' for step in range(1, 18))
    (tmp_path / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    assert main(["report", "curves", str(tmp_path)]) == 0
    page = open_page((tmp_path / "curves.html").as_uri())
    shown = page.page.locator("svg .axis").all_text_contents()
    assert shown == ["-2", "-1.5", "-1", "-0.5", "0", "0.5", "5", "10", "15"]
