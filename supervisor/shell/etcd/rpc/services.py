"""The client stubs of etcd's services, read from the descriptors that rpc_pb2 carries."""

from __future__ import annotations

from typing import Any

from google.protobuf.message_factory import GetMessageClass

from supervisor.shell.etcd.rpc.rpc_pb2 import DESCRIPTOR

__all__ = ["AuthStub", "ClusterStub", "KVStub", "LeaseStub", "MaintenanceStub", "WatchStub"]


def _stub(name: str) -> type:
    """Makes the stub's class: an instance on a channel has a callable for each method of the service."""
    service = DESCRIPTOR.services_by_name[name]

    def on_channel(self: Any, channel: Any) -> None:
        for method in service.methods:
            way = {False: "unary", True: "stream"}
            call = getattr(channel, f"{way[method.client_streaming]}_{way[method.server_streaming]}")
            made = call(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, made)

    return type(f"{name}Stub", (), {"__init__": on_channel})


AuthStub = _stub("Auth")
ClusterStub = _stub("Cluster")
KVStub = _stub("KV")
LeaseStub = _stub("Lease")
MaintenanceStub = _stub("Maintenance")
WatchStub = _stub("Watch")
