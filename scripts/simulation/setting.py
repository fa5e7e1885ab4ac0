"""What is simulated: numbers with the source of each, all of which can be set with ``--set NAME=VALUE``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from packer.packing.plan import default_shard_bytes

MEASURED = "measured here"
BENCHMARKS = "docs/benchmarks.md"
S3 = "docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html"
PRICES = "docs/remote.md, What it costs"
CHOSEN = "chosen"


def _number(default: Any, source: str, unit: str = "") -> Any:
    return field(default=default, metadata={"source": source, "unit": unit})


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A set, the machines that pack it, those that train from it, and their store."""

    images: int = _number(100_000_000, CHOSEN)
    source_bytes: int = _number(110_000, "mean of ImageNet's JPEGs", "an image")
    image_bytes: int = _number(28_000, f"JPEG of 256 px, {BENCHMARKS}", "an image")
    header_bytes: int = _number(16 * 1024, "packer.packing.make_record.HEAD_BYTES", "an image")
    index_bytes: int = _number(100, "packer.packing.plan.INDEX_ROW_BYTES", "an image")
    folders: int = _number(1000, CHOSEN)
    shard_bytes: int = _number(0, "0: default of --shard-size, packer.packing.plan.default_shard_bytes")
    manifest_bytes: int = _number(400, f"pack.json, {MEASURED}", "a shard")
    source_in_store: bool = _number(True, CHOSEN)
    output_in_store: bool = _number(True, CHOSEN)
    headers: bool = _number(False, "not read for --resize to one shape or --encode copy from a store")

    build_nodes: int = _number(64, CHOSEN)
    build_cores: int = _number(48, "c5.24xlarge: 96 vCPUs are 48 cores")
    workers: int = _number(48, "as many as cores", "a node")
    build_network_bytes_s: float = _number(25e9 / 8, "c5.24xlarge: 25 Gb/s")
    build_usd_hour: float = _number(4.08, "c5.24xlarge on demand, docs.aws.amazon.com (Auto Scaling, price example)")
    waits_for_merge: bool = _number(False, "True for --engine local, whose workers wait for the coordinator")
    dispatch_s: float = _number(0.002, "a task of Ray from start to result, less its work", "a task")

    nodes: int = _number(64, CHOSEN)
    ranks: int = _number(8, CHOSEN, "a node")
    cores: int = _number(96, "p5e.48xlarge: 192 vCPUs are 96 cores", "a node")
    threads: int = _number(12, "cores of a node / ranks", "a rank")
    batch: int = _number(256, CHOSEN, "a rank")
    gpu_images_s: float = _number(3500, "ResNet-50 on an H200, estimate in docs/remote.md", "a rank")
    network_bytes_s: float = _number(100e9 / 8, f"up to 100 Gb/s from S3 to an instance, {S3}", "a node")
    disk_bytes_s: float = _number(8e9, "assumed: a quarter of what 8 NVMe disks read in order", "a node")
    memory_bytes: float = _number(2048 * 2**30, "p5e.48xlarge", "a node")
    cache_bytes: float = _number(30e12, "p5e.48xlarge: 8 x 3.84 TB", "a node")
    usd_hour: float = _number(43.26, "8 x H200, EC2 Capacity Blocks, price list of the end of 2024")
    canonical: bool = _number(True, "BlockShuffleSampler(nodes=)")
    block_shuffle: bool = _number(True, "False: ShuffleSampler")
    block_records: int = _number(256, "default of BlockShuffleSampler")
    window_blocks: int = _number(64, "default of BlockShuffleSampler")

    latency_s: float = _number(0.1, f"100 to 200 ms to the first byte, {S3}", "a request, mean")
    latency_tail: float = _number(0.3, "assumed: this share of the mean is exponential")
    keys_a_page: int = _number(1000, "S3: ListObjectsV2")
    prefixes: int = _number(1, "of the pack; S3 divides it further under load, within 30 to 60 minutes")
    source_prefixes: int = _number(64, "assumed: so many of the folders are partitions of S3")
    prefix_gets_s: float = _number(5500, f"S3: {S3}", "a prefix")
    prefix_puts_s: float = _number(3500, f"S3: {S3}", "a prefix")
    usd_1000_gets: float = _number(0.0004, PRICES)
    usd_1000_puts: float = _number(0.005, f"{PRICES}; listing too")
    usd_gb_out: float = _number(0.0, f"within a region; 0.12 beyond: {PRICES}", "GB")

    list_s: float = _number(14e-6, "71,000 names/s from SeaweedFS, one process", "a name, coordinator")
    merge_s: float = _number(0.8e-6, MEASURED, "an image, coordinator")
    annotate_s: float = _number(4.3e-6, f"{MEASURED}: labels, where headers are not read", "an image, coordinator")
    header_s: float = _number(13.5e-6, f"{MEASURED}: header and labels", "an image")
    convert_s: float = _number(2.85e-3, f"{MEASURED}: photos to JPEG of 256 px, read back and hashed", "an image")
    record_s: float = _number(0.002, MEASURED, "a shard, coordinator")
    start_s: float = _number(0.2, MEASURED, "a build, coordinator")
    worker_start_s: float = _number(0.5, MEASURED, "a worker")
    coordinator_bytes: float = _number(60, "goal of bench.py plan", "an image")
    decode_s: float = _number(0.36e-3, f"{MEASURED}: decode and crop", "an image")
    fetch_byte_s: float = _number(2e-9, f"{MEASURED}, without TLS", "a byte")

    @property
    def shards(self) -> int:
        """Number of shards."""
        return max(1, -(-self.images * self.image_bytes // self.bytes_of_shard))

    @property
    def bytes_of_shard(self) -> int:
        """Size of a shard: as given, or as packer chooses it."""
        return self.shard_bytes or default_shard_bytes(self.images * self.image_bytes)

    @property
    def pack_bytes(self) -> float:
        """All records."""
        return float(self.images * self.image_bytes)

    @property
    def takes_windows(self) -> bool:
        """Whether whole windows are asked for in advance: of a block shuffle, if the cache holds the pack."""
        return self.block_shuffle and self.pack_bytes <= self.cache_bytes

    @property
    def puts_per_s(self) -> float:
        """Of the store, on all prefixes."""
        return self.prefixes * self.prefix_puts_s


def parsed(assignments: list[str]) -> dict[str, Any]:
    """Return the fields of NAME=VALUE. Raise ValueError if there is no such field."""
    kinds: dict[str, Any] = {one.name: type(one.default) for one in fields(Setting)}
    found: dict[str, Any] = {}
    for text in assignments:
        name, _, value = text.partition("=")
        if name not in kinds:
            raise ValueError(f"no number is called {name}; one of {', '.join(kinds)}")
        kind = kinds[name]
        found[name] = value.lower() in ("1", "true", "yes") if kind is bool else kind(float(value))
    return found
