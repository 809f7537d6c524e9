"""What is looked at on a machine before a rank runs there (ADR 9, docs/NODES.md): a function each, in a process of its own
with a limit, so that what hangs costs no more than that."""
