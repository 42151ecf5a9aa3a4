"""Documentation that is made from the code says what the code says."""

from pathlib import Path

import pytest

from tools.docs import GENERATED


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_generated_documentation_is_not_stale(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == GENERATED[path](), "run `make docs`"


def test_links_in_documentation_lead_somewhere() -> None:
    root = Path(__file__).parents[2]
    broken = [
        f"{page.relative_to(root)}: {target}"
        for page in [root / "README.md", root / "CHANGELOG.md", *(root / "docs").rglob("*.md")]
        for target in _links(page)
        if not (page.parent / target).exists()
    ]
    assert broken == []


def _links(page: Path) -> list[str]:
    pieces = page.read_text(encoding="utf-8").split("](")[1:]
    targets = [piece.partition(")")[0].partition("#")[0] for piece in pieces]
    return [target for target in targets if target and "://" not in target]
