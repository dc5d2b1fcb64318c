"""Transports between ranks, and over them each aggregation with its cost."""
