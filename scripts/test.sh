#!/usr/bin/env bash
# The checks of every change: style, types, documentation, tests. Arguments go to pytest: scripts/test.sh -k voc
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh
make_venv dev

.venv/bin/ruff check packer tests scripts
.venv/bin/mypy
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --strict --site-dir "$site"
.venv/bin/python -m pytest --numprocesses=auto --dist=worksteal "$@"
