"""Requests of a person to this node: stacks, a command, logs, the debugger. They and their answers go through etcd."""
