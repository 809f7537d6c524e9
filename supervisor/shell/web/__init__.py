"""The page of a run for people: read-only, live, from this supervisor's own mirror of etcd (ADR 12)."""
