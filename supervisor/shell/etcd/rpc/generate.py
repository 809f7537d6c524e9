"""Regenerates the messages of this folder from its .proto files: `python supervisor/shell/etcd/rpc/generate.py`.

Run it by path, not with -m: the package cannot be imported without them. Needs grpcio-tools 1.74.0 (a dev
dependency): the output of newer versions does not load on protobuf 6.33.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[3]
NAMES = ("kv", "auth", "rpc")


def main() -> int:
    """Writes *_pb2.py and *_pb2.pyi. Returns protoc's exit code."""
    from grpc_tools import protoc

    # Paths from the repository's root, so that the files register as supervisor/shell/etcd/rpc/kv.proto: a second
    # "kv.proto" in one process (etcd3's own, say) is a "duplicate file name" error.
    files = [str((FOLDER / f"{name}.proto").relative_to(ROOT)) for name in NAMES]
    options = [f"-I{ROOT}", f"--python_out={ROOT}", f"--pyi_out={ROOT}"]
    return int(protoc.main(["protoc", *options, *files]))


if __name__ == "__main__":
    sys.exit(main())
