"""The server model behind a real HTTP port: vLLM's routes, shapes and metrics, with made-up tokens."""
