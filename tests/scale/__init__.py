"""Thousands of open streams at once: opt-in (`make test-all`), bounded, on loopback only."""
