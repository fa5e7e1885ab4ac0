"""Builds to S3, and packs between folders and S3: the tests of the suite, with SeaweedFS and rclone."""

from __future__ import annotations

from store_outputs import StoreOutputs, Transfers


class TestBuildsToS3(StoreOutputs):
    pass


class TestTransfersToS3(Transfers):
    pass
