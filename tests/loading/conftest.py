"""The packs that the tests of datasets share."""

from packs import container, copied, make_pack

__all__ = ["container", "copied", "make_pack"]
