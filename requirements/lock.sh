#!/bin/sh
# lock.sh [OPTION...]: write the lock files from pyproject.toml and release.in, by uv. What is pinned stays while it fits;
# --upgrade brings the newest, --upgrade-package NAME that of one package.
set -eu
cd "$(dirname "$0")/.."
lock() { # lock NAME ARGUMENT...
    file=requirements/$1.lock
    shift
    .venv/tools/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --custom-compile-command "make lock" --output-file "$file" "$@" >/dev/null
}
lock release requirements/release.in "$@"
lock dev pyproject.toml --extra dev "$@"
lock models requirements/models.in --no-deps --constraints requirements/dev.lock "$@"
lock demo pyproject.toml --extra demo --constraints requirements/dev.lock "$@"
echo setuptools | lock build - --constraints requirements/dev.lock "$@"
grep -o '^torch==[^ ]*' requirements/dev.lock | lock cuda - --no-config --constraints requirements/dev.lock "$@"
