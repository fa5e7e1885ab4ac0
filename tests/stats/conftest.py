"""The packs that the tests of statistics share."""

from packs import make_pack

__all__ = ["make_pack"]
