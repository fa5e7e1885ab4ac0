"""The HTML template and stylesheet of all pages of packer.

The served page links the stylesheet; a contact sheet and a bench report include it, because they are one file.
"""

from __future__ import annotations

import os
from html import escape
from string import Template


def read_static(module: str, name: str) -> str:
    """Return the text of a file in the folder `static` beside a module, given by its ``__file__``."""
    with open(os.path.join(os.path.dirname(module), "static", name), encoding="utf-8") as file:
        return file.read()


def stylesheet() -> str:
    """Return the stylesheet of all pages."""
    return read_static(__file__, "style.css")


def html_page(title: str, body: str, head: str, kind: str) -> str:
    """Return a whole page.

    Args:
        title: Its title, as text.
        body: Its body, as HTML.
        head: More elements for its head, as HTML.
        kind: The class of the body, to which rules of the stylesheet refer: ``app``, ``sheet`` or ``report``.
    """
    return Template(read_static(__file__, "page.html")).substitute(title=escape(title), head=head, kind=kind, body=body)


def one_file_page(title: str, body: str, kind: str, style: str = "", mark: str = "") -> str:
    """Return a self-contained page with more rules of `style`, after an element `mark`; see `html_page`."""
    # allow only the style and images of this file, whatever names in the data contain
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = f'{mark}<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{stylesheet()}{style}</style>'
    return html_page(title, body, head, kind)
