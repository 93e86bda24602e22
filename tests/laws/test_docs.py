"""Pages say what is so: numbers come from results, links lead somewhere, promises name tests that exist."""

import re
from pathlib import Path

import pytest

from bench import report

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def test_the_benchmark_page_is_what_the_results_say() -> None:
    assert report.PAGE.read_text() == report.page()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    "page", [ROOT / "docs" / "PROMISES.md", ROOT / "docs" / "THREAT_MODEL.md"], ids=lambda p: p.name
)
def test_every_test_a_page_names_exists(page: Path) -> None:
    for named in re.findall(r"`(tests/[\w/.]+)`", page.read_text()):
        assert (ROOT / named).exists(), f"{page.name}: {named}"


def test_the_readme_names_only_commands_that_exist() -> None:
    from everstep.cli.main import cli

    verbs = set(re.findall(r"^everstep (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert verbs
    assert verbs <= set(cli.commands)
