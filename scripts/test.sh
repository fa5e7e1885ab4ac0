#!/usr/bin/env bash
# The checks of every change: style, types, documentation, tests. Arguments go to pytest: scripts/test.sh -k voc
# Without -m, the slow tests are left out: scripts/test.sh -m slow runs those, scripts/test.sh -m '' all.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh
make_venv dev

.venv/bin/ruff check packer tests scripts
if .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    .venv/bin/mypy
else
    echo "types are not checked: the last NumPy for Python 3.10 has other annotations"
fi
if [ -x .venv/bin/zensical ]; then
    .venv/bin/zensical build --strict --clean  # what mkdocs.yml says, to site/
else
    echo "the documentation is not built: zensical needs Python 3.11"
fi
.venv/bin/python -m pytest --numprocesses=auto --dist=worksteal -m "not slow" "$@"
case " $*" in
    *" -m"*) ;;
    *) echo "the first tier passed; the second, which .ci/run runs too: scripts/test.sh -m slow" ;;
esac
