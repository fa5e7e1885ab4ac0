"""Makes the pages that people read elsewhere fit a release: `python scripts/write_release.py v0.2.0`, in its workflow.

In the repository links are relative and packer is installed from a clone. On a package index, links lead to the files
of that tag, at the address that pyproject.toml names, and packer is installed by name. The changes are not committed.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/index.md", "docs/install.md", "docs/llms.txt")
LINK = re.compile(r"(\]\(|^\[[^]\n]+\]: )(?![a-z]+://|#)([^)\s]+)", re.MULTILINE)
CLONED = re.compile(r"""pip install (--no-deps )?(?:\.|"\.(\[\w+\])")(?: +#.*$|(?=\n|`))""", re.MULTILINE)


def address() -> str:
    """Return the address of the repository, which pyproject.toml holds for all."""
    (found,) = re.findall(r'^Homepage = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    return str(found)


def released(page: str, text: str, tag: str) -> str:
    """Return a page, named by its path in the repository, as it is in the release of a tag."""

    def absolute(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        return f"{link[1]}{address()}/{'raw' if path.endswith('.svg') else 'blob'}/{tag}/{path}"

    def by_name(command: re.Match[str]) -> str:
        name = f'"dataset-packer{command[2]}"' if command[2] else "dataset-packer"
        return f"pip install {command[1] or ''}{name}"

    text = CLONED.sub(by_name, text).replace(" packer is not on a package index yet; in a clone of it:", "")
    return LINK.sub(absolute, text) if page in ("README.md", "docs/llms.txt") else text


def main() -> None:
    """Rewrite the pages."""
    (tag,) = sys.argv[1:]
    for page in PAGES:
        path = ROOT / page
        path.write_text(released(page, path.read_text("utf-8"), tag), "utf-8")


if __name__ == "__main__":
    main()
