"""The one module that imports etcd3.

etcd3 0.12.0 brings stubs that protobuf 4 and later refuse to load ("Downgrade the protobuf package"), and TorchTitan's
dependencies need protobuf 6. So our own, generated from the same API, take their name before etcd3 looks for it.
"""

from __future__ import annotations

import sys

from supervisor.shell.store import rpc

sys.modules["etcd3.etcdrpc"] = rpc

import etcd3  # noqa: E402  (only now: see above)

__all__ = ["etcd3", "rpc"]
