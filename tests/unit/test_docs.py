"""Documentation that is made from the code says what the code says."""

from pathlib import Path
from typing import get_args

import pytest

from strandline.connect import LOG_FILE
from strandline.ids import MARKER_KEY, Kind
from strandline.location.local.temporary import TEMPORARY_DIRECTORY
from strandline.location.sqlite.consensus import APPLICATION_ID
from strandline.parts.files.footer import Footer, Identity
from strandline.parts.schema import COLUMN_ID, DIFF, END, TIME
from strandline.state.model import COLLECTIONS
from tools.docs import GENERATED


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_generated_documentation_is_not_stale(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == GENERATED[path](), "run `make docs`"


def test_the_format_page_names_everything_that_is_stored() -> None:
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    footer = [name.decode() for name in Footer({}, [], []).to_metadata()]
    about = [f"`{name}`" for name in Identity.__dataclass_fields__]
    kinds = [f"/{kind}/" for kind in get_args(Kind)]
    collections = [f"| `{name}` |" for name in COLLECTIONS]
    files = [MARKER_KEY, LOG_FILE, TEMPORARY_DIRECTORY, f"0x{APPLICATION_ID:08x}"]
    magics = ["SLrc", "SLpg", "SLru", "SLbt"]
    columns = [TIME, DIFF, END, COLUMN_ID.decode()]
    stored = [*footer, *about, *kinds, *collections, *files, *magics, *columns]
    assert [name for name in stored if name not in page] == []


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
