"""Async OpenAI-style HTTP client with streaming, for the batch worker and the bench."""
