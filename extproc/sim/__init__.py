"""Discrete-event simulator over the real core, and the emulator built on the same server model."""
