"""One page that needs nothing else, in both forms, of every kind of result."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from llm_runtime.bench import compare, plots, sweep
from llm_runtime.bench.config import ClosedLoop, Slo
from llm_runtime.bench.files import write_json, write_result
from llm_runtime.bench.page import Paragraph, Table, as_html, as_markdown
from llm_runtime.bench.report import write_report
from llm_runtime.core.errors import ConfigError
from tests.bench.loads import QUICK, measure, with_members


@pytest.fixture
async def results(tmp_path: Path) -> list[Path]:
    """A run, a run that failed, a sweep of two levels and a comparison of one round."""
    good = await measure(requests=6, slo=Slo(ttft_s=1.0))
    bad = await measure(with_members(QUICK, status=500))
    more = await measure(requests=6, load=ClosedLoop(3))
    write_result(tmp_path / "good.json", good.summary, good.result)
    write_result(tmp_path / "bad.json", bad.summary, bad.result)
    points = [sweep.Point(1, 0, {}, good.summary), sweep.Point(3, 0, {"slots": "2"}, more.summary)]
    write_json(tmp_path / "swept.json", sweep.as_json(points, sweep.Levels((1, 3))))
    rounds = [compare.Round(0, "a", good.summary, more.summary)]
    write_json(tmp_path / "compared.json", compare.as_json(rounds, compare.ratios(rounds, 0)))
    return [tmp_path / f"{name}.json" for name in ("good", "bad", "swept", "compared")]


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


async def test_html_holds_all_it_shows(tmp_path: Path, results: list[Path]) -> None:
    assert write_report(results, tmp_path / "page.html", "A <title>") == []
    text = (tmp_path / "page.html").read_text()
    links = Links()
    links.feed(text)
    assert len(links.sources) >= 5
    for source in links.sources:
        assert source.startswith("data:image/png;base64,")
        assert base64.b64decode(source.partition(",")[2]).startswith(b"\x89PNG")
    assert "A &lt;title&gt;" in text
    for word in ("good", "bad", "swept", "compared", "FAILED", "slots = 2", "ten samples beyond"):
        assert word in text
    assert str(tmp_path) not in text


async def test_markdown_has_tables_and_pictures(tmp_path: Path, results: list[Path]) -> None:
    write_report(results[:1], tmp_path / "page.md", "Title")
    text = (tmp_path / "page.md").read_text()
    assert text.startswith("# Title\n")
    assert re.search(r"^\| run \| completed", text, re.MULTILINE)
    assert len(re.findall(r"!\[[^]]*\]\(data:image/png;base64,", text)) == 3


async def test_without_matplotlib_tables_remain(
    tmp_path: Path, results: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "available", lambda: False)
    notes = write_report(results, tmp_path / "page.html", "T")
    assert "matplotlib" in notes[0]
    text = (tmp_path / "page.html").read_text()
    assert "<img" not in text
    assert "<table>" in text


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}')
    with pytest.raises(ConfigError, match="no result"):
        write_report([path], tmp_path / "page.html", "T")


def test_text_cannot_break_out_of_a_page() -> None:
    parts: list[Any] = [Paragraph("<script>|*_`[x](y)"), Table(["a|b"], [["<b>"]])]
    assert "<script>" not in as_html("t", parts)
    markdown = as_markdown("t", parts)
    assert "\\<script" in markdown
    assert "| a\\|b |" in markdown
