#!/bin/sh
# audit.sh LOCK...: ask for the known holes of what the lock files pin. Those of known-holes.txt are passed over; a package
# that could not be asked for is an error.
set -eu
here=$(dirname "$0")
borne=$(sed -n 's/^\([A-Z][^ ]*\) .*/--ignore-vuln \1/p' "$here/known-holes.txt")
status=0
for file in "$@"; do
    echo "$file"
    # shellcheck disable=SC2086 # an option and its value for each
    "$here/../.venv/tools/bin/pip-audit" --strict --disable-pip --require-hashes --progress-spinner off $borne \
        ${AUDIT:-} --requirement "$file" || status=1
done
exit $status
