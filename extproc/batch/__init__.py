"""The batch queue processor: durable jobs whose evicted streams resume from their saved tokens."""
