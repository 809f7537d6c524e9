"""The only module that imports etcd3.

protobuf 4 and later refuse to load the stubs of etcd3 0.12.0 ("Downgrade the protobuf package"), and TorchTitan's
dependencies need protobuf 6. So our own stubs, of the same API, take their name before etcd3 is imported.
"""

from __future__ import annotations

import sys

from supervisor.shell.etcd import rpc

sys.modules["etcd3.etcdrpc"] = rpc

import etcd3  # noqa: E402  (only now: see above)

__all__ = ["etcd3", "rpc"]
