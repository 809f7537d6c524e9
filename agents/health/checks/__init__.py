"""Checks of a machine before a rank runs there (ADR 9, docs/NODES.md). Each is a function in its own process with a
time limit, so that a check that hangs costs no more than its limit."""
