"""Collectives over any transport, each with its cost and its measurement."""
