"""Writes docs/llms.txt, a list of all pages for language models (llmstxt.org), from the navigation in mkdocs.yml.

Each page is linked as Markdown, with its first sentence. With --check it only says whether the file is up to date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "llms.txt"


class Settings(yaml.SafeLoader):
    """YAML as mkdocs reads it; tags of other programs are texts."""


Settings.add_multi_constructor("", lambda loader, suffix, node: suffix)


def first_sentence(page: str) -> str:
    """Return the first sentence of the first paragraph of a page as plain text."""
    paragraphs = [part.strip() for part in re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL).split("\n\n")]
    texts = [part for part in paragraphs if part and not part.startswith(("#", "```", "|", "- ", "!", "--8<--"))]
    text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(texts[0].split())) if texts else ""
    return re.split(r"(?<=\.)\s", text)[0].replace("**", "")


def lines(nav: list[dict[str, Any]]) -> list[str]:
    """Return a line for each page of a section."""
    out = []
    for entry in nav:
        for title, path in entry.items():
            source = "CHANGELOG.md" if path == "changelog.md" else f"docs/{path}"
            sentence = first_sentence((ROOT / source).read_text("utf-8"))
            out.append(f"- [{title}]({path})" + (f": {sentence}" if sentence else ""))
    return out


def text() -> str:
    """Return the whole file."""
    settings = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Settings)
    parts = [f"# {settings['site_name']}\n", f"> {settings['site_description']}\n"]
    for section in settings["nav"]:
        for title, entries in section.items():
            parts += [f"## {title}\n", *lines(entries), ""]
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text(), "utf-8")
    elif not TARGET.is_file() or TARGET.read_text("utf-8") != text():
        print(f"{TARGET} is not what mkdocs.yml and the pages say; run python scripts/write_llms.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
