"""Shows a pack in a notebook: the page in a frame, or a contact sheet where the browser is on another machine."""

from __future__ import annotations

import html
import operator
import os
import threading
from collections.abc import Sequence
from types import TracebackType

from packer.errors import AnyPath, UsageError
from packer.format.pack import Pack, join_packs, open_pack
from packer.samplers.ranks import check_int

FRAME = '<iframe {source} width="100%" height="{height}" style="border: 1px solid #8884" {more}></iframe>'
COUNT = 60


def view(
    pack: AnyPath | Pack | Sequence[AnyPath | Pack],
    *,
    height: int = 720,
    sheet: bool | int = False,
    seed: int | None = None,
    port: int = 0,
    token: str | None = None,
) -> View | Sheet:
    """Show a pack in a notebook, as the last expression of a cell.

    The page is served by a thread of the notebook's process, on 127.0.0.1 only, at an address with a random token. So
    the browser must run on the same machine. If it does not (Colab, JupyterHub), pass ``sheet=True``: images and labels
    become part of the notebook.

    Args:
        pack: The directory or URL of a pack, or an open pack; or a list of them, which are shown together.
        height: Height of the frame, pixels.
        sheet: Show a contact sheet, which needs no server: a number of records, or True for 60.
        seed: Samples the records of the sheet; default: the first ones.
        port: The port of the page; default: any free port.
        token: The secret part of its address; default: a random one.

    Returns:
        A `View`, which has `url` and `close`, or a `Sheet`.

    Raises:
        UsageError: A pack cannot be used, or a value is wrong or would have no effect.
        DamagedPack: As for `open_pack`.
    """
    height = check_int("height", height, 1)
    if sheet is False:
        if seed is not None:
            raise UsageError("seed", "needs sheet", "add sheet=True, or leave it out")
        if token is not None and not isinstance(token, str):
            raise UsageError("token", f"must be text, got {token!r}", "leave it out for a random one")
        from packer.view.app import MOST_PORT

        return View(_open_given(pack), height, check_int("port", port, 0, MOST_PORT), token)
    for name, given in (("port", port != 0), ("token", token is not None)):
        if given:
            raise UsageError(name, "has no effect with sheet", "leave one of them out")
    seed = None if seed is None else check_int("seed", seed, 0)
    return Sheet(_open_given(pack), _count(sheet), seed, height)


def _open_given(pack: AnyPath | Pack | Sequence[AnyPath | Pack]) -> Pack:
    if isinstance(pack, Pack):
        return pack
    if isinstance(pack, str | bytes | os.PathLike):
        return open_pack(pack)
    if not isinstance(pack, list | tuple):
        raise UsageError("pack", f"must be a pack, its path or URL, or a list of them, got {pack!r}")
    return _open_given(pack[0]) if len(pack) == 1 else join_packs(pack)


def _count(sheet: bool | int) -> int:
    """Return the number of records of a sheet; 1 is a number, though it is equal to True."""
    from packer.view.export import MOST

    try:
        count = COUNT if sheet is True else operator.index(sheet)
    except TypeError:
        count = 0
    if not 1 <= count <= MOST:
        problem = f"must be True, False or a number of records from 1 to {MOST:,}, got {sheet!r}"
        raise UsageError("sheet", problem, "leave it out for the page")
    return count


class View:
    """The page of a pack, served by a thread until `close`, or until the process ends.

    `url` is its address. It holds the token: whoever has it and is on this machine can see the pack.

    Args:
        pack: An open pack.
        height: Height of the frame, pixels.
        port: The port of the page; 0: any free port.
        token: The secret part of its address; default: a random one.
    """

    def __init__(self, pack: Pack, height: int = 720, port: int = 0, token: str | None = None) -> None:
        from packer.view.app import Server

        self._server = Server(pack, port, token, framed=True)
        self._height = int(height)
        self.url = self._server.url
        self._pack = repr(pack)
        self._open = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="packer view", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the page. It may be called again."""
        if self._open:
            self._open = False
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<View of {self._pack} at {self.url}>" if self._open else f"<View of {self._pack}, closed>"

    def _repr_html_(self) -> str:
        if not self._open:
            return "<p>This page of packer view was closed.</p>"
        source = f'src="{html.escape(self.url)}"'
        frame = FRAME.format(source=source, height=self._height, more='allow="clipboard-write"')
        return (
            f'{frame}<p><small><a href="{html.escape(self.url)}" target="_blank" rel="noreferrer">Open in a tab</a>. '
            "If nothing is shown, the browser runs on another machine: <code>packer.view(pack, sheet=True)</code> "
            "needs no server.</small></p>"
        )


class Sheet:
    """A contact sheet of a pack, as a part of a notebook. `html` is its page.

    Raises:
        UsageError: `count` is out of range.
        DamagedPack: An index is damaged.
    """

    def __init__(self, pack: Pack, count: int = COUNT, seed: int | None = None, height: int = 720) -> None:
        from packer.view.export import sheet_page

        self.html = "".join(sheet_page(pack, count, seed))
        self._height = int(height)
        self._pack = repr(pack)

    def __repr__(self) -> str:
        return f"<Sheet of {self._pack}>"

    def _repr_html_(self) -> str:
        # in a frame of its own: its style must not change the notebook's, and nothing in it may run
        return FRAME.format(source=f'srcdoc="{html.escape(self.html)}"', height=self._height, more="sandbox")
