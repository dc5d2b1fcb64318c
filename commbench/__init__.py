"""Measures collectives on the real cluster and fits their costs."""
