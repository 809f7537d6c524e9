"""The store on etcd. `supervisor.ports.store` has the contract, and docs/DEPENDENCIES.md what etcd3 does here."""

from supervisor.shell.etcd.election import Election, Leadership
from supervisor.shell.etcd.errors import LeaseLost, OutOfSpace
from supervisor.shell.etcd.etcd_store import EtcdStore, connect
from supervisor.shell.etcd.status import StoreStatus, check_version

__all__ = [
    "Election",
    "EtcdStore",
    "Leadership",
    "LeaseLost",
    "OutOfSpace",
    "StoreStatus",
    "check_version",
    "connect",
]
