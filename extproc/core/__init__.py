"""The policy core: pure and synchronous. No clock, no event loop, no gRPC, no logging."""
