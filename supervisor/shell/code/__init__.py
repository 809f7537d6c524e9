"""The users' code: scanned and sent by a client, kept and served by the leader (ADR 24)."""
