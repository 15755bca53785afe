"""The asyncio shell of the external processor around the pure core."""
