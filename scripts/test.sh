#!/usr/bin/env bash
# The checks of every change: style, types, documentation, tests. Arguments go to pytest: scripts/test.sh -k voc
# Without -m, the slow tests are left out: scripts/test.sh -m slow runs those, scripts/test.sh -m '' all.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh
make_venv dev

.venv/bin/ruff check packer tests scripts
if [ -x .venv/bin/zensical ]; then
    .venv/bin/zensical build --strict --clean  # what mkdocs.yml says, to site/
else
    echo "the documentation is not built: zensical needs Python 3.11"
fi
types='' said=$(mktemp)
trap 'rm -f "$said"; [ -z "$types" ] || kill "$types" 2>/dev/null || true' EXIT
if .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    .venv/bin/mypy >"$said" 2>&1 &  # on one core, which the tests do not always need
    types=$!
else
    echo "types are not checked: the last NumPy for Python 3.10 has other annotations" >"$said"
fi
failed=0
.venv/bin/python -m pytest --numprocesses=auto --dist=worksteal -m "not slow" "$@" || failed=$?
[ -z "$types" ] || wait "$types" || failed=1
types=''
cat "$said"
case " $*" in
    *" -m"*) ;;
    *) echo "this was the first tier of the tests; the second, which .ci/run runs too: scripts/test.sh -m slow" ;;
esac
exit "$failed"
