"""The packs that the tests of repacking share."""

from packs import container, copied, make_pack

__all__ = ["container", "copied", "make_pack"]
