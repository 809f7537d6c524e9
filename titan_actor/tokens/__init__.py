"""Token stores and the stream of samples that all groups share (ADR 26). Only `loader` and `place` import torch."""
