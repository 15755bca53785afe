"""Fixtures for every suite."""

import os

# Tests start Envoy from a process that runs a gRPC server; gRPC's fork handlers can stop the child before
# it executes.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

pytest_plugins = ["tests.support.stack"]
