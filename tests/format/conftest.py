"""The packs that the tests of reading, checking and repairing packs share."""

from packs import container, copied, make_pack

__all__ = ["container", "copied", "make_pack"]
