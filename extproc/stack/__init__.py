"""Starts and stops a local stack (Envoy, server, emulators) as child processes on free ports."""
