#!/usr/bin/env bash
# The checks of every change: style, types, tests. Arguments go to pytest: scripts/test.sh -k voc
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh
make_venv dev

.venv/bin/ruff check packer tests scripts
.venv/bin/mypy
.venv/bin/python -m pytest "$@"
