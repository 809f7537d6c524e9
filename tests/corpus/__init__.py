"""Inputs of `decide` and its answers, recorded before the code was rearranged: every answer stays as it is."""
