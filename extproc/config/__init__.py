"""YAML to frozen dataclasses, every problem reported at once with its path and line."""
