"""Makes tests/helpers.py importable, and says which library is tested."""

import sys
from pathlib import Path

import packer_fast

sys.path.insert(0, str(Path(__file__).parent))


def pytest_report_header() -> str:
    return f"packer-fast {packer_fast.version()}"
