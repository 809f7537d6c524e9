#!/bin/sh
# torch.sh PYTHON OPTION...: install the torch that the lock files pin, by pip with these options: the CPU build where
# pip's sources have one, else the public one with its gigabytes of CUDA. A build of that version that is there stays.
set -eu
here=$(dirname "$0")
python=$1
shift
pinned=$(sed -n 's/^torch==\(.*\)+cpu .*/\1/p' "$here/torch-cpu.lock")
case "$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null)" in
    "$pinned" | "$pinned"+*) exit 0 ;;
esac
if problem=$("$python" "$@" -r "$here/torch-cpu.lock" 2>&1); then exit 0; fi
case "$problem" in
    *"No matching distribution found"*) ;;
    *"ResolutionImpossible"*) ;; # the same, where pip's configuration has a constraint on torch
    *) echo "$problem" >&2; exit 1 ;; # a wrong hash among others
esac
echo "torch.sh: pip finds no CPU build of torch $pinned: the public one is installed, with CUDA"
"$python" "$@" -r "$here/cuda.lock"
