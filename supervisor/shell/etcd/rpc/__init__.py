"""Our own stubs of etcd's v3 API, generated (see generate.py): the names that etcd3 looks for in `etcd3.etcdrpc`."""

from .rpc_pb2 import *
from .rpc_pb2_grpc import *
