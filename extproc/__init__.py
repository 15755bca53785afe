"""Flow control for pools of vLLM servers, as an Envoy external processor."""

__version__ = "0.1.0"

__all__ = ["__version__"]
