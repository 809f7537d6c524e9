"""Regenerates the stubs of this folder from its .proto files: `python supervisor/shell/etcd/rpc/generate.py`.

Run it by path, not with -m: the package cannot be imported without its stubs. Needs grpcio-tools 1.74.0 (a dev
dependency): stubs of newer versions do not load on protobuf 6.33.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[3]
NAMES = ("kv", "auth", "rpc")


def main() -> int:
    """Writes *_pb2.py, *_pb2.pyi and rpc_pb2_grpc.py. Returns protoc's exit code."""
    from grpc_tools import protoc

    # Paths from the repository's root, so that the files register as supervisor/shell/etcd/rpc/kv.proto: a second
    # "kv.proto" in one process (etcd3's own, say) is a "duplicate file name" error.
    files = [str((FOLDER / f"{name}.proto").relative_to(ROOT)) for name in NAMES]
    options = [f"-I{ROOT}", f"--python_out={ROOT}", f"--pyi_out={ROOT}"]
    code: int = protoc.main(["protoc", *options, *files])
    # only rpc.proto has services
    return code or int(protoc.main(["protoc", f"-I{ROOT}", f"--grpc_python_out={ROOT}", files[-1]]))


if __name__ == "__main__":
    sys.exit(main())
