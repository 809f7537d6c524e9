"""Our own messages and stubs of etcd's v3 API, by the names that etcd3 looks for in `etcd3.etcdrpc`: see generate.py and services.py."""

from .rpc_pb2 import *
from .services import *
