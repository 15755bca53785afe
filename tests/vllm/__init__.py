"""Tests against a real vLLM on the CPU: opt-in (`make test-vllm`), 2.3 GB of packages in an
environment of its own.
"""
