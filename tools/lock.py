"""Prints requirements.lock: every package of strandline[all,dev], pinned.

Resolved by pip without installing anything, so the environment at hand has no influence on it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

HEADER = """\
# Every package of strandline[all,dev], pinned. Written by `make lock`; not edited by hand.
"""


def resolved() -> dict[str, str]:
    """Name and version of all that pip would install for the package with its extras."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"),
                *("--ignore-installed", "--report", str(report), f"{ROOT}[all,dev]"),
            ],
            check=True,
            stdout=sys.stderr,
        )
        packages = json.loads(report.read_text())["install"]
    versions = {p["metadata"]["name"].lower(): p["metadata"]["version"] for p in packages}
    del versions["strandline"]
    return versions


def main() -> None:
    """Print the lock file."""
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(resolved().items()))
    print(HEADER + pins, end="")


if __name__ == "__main__":
    main()
