#!/bin/sh
# What was before a mend: `sh fault_injection/before.sh COMMIT COMMAND...` runs COMMAND on the parent of COMMIT, but with COMMIT's tests, in a
# worktree that is gone afterwards. Its exit code is COMMAND's.
set -eu
mend=$1
shift
repository=$(git rev-parse --show-toplevel)
before=$(mktemp -d)/before
trap 'git -C "$repository" worktree remove --force "$before"; rmdir "$(dirname "$before")"' EXIT
trap 'exit 143' INT TERM
git -C "$repository" worktree add --quiet --detach "$before" "$mend^"
# the tests' worlds are beside them
git -C "$before" checkout --quiet "$mend" -- tests $(git -C "$repository" ls-tree --name-only "$mend" fault_injection/testbed fault_injection/doubles)
cd "$before"
PYTHONPATH=$before "$@"
