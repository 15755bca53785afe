"""What several replicas cost and keep: throughput, calls to Redis, allocation, latency in virtual time."""
