"""Measurements of comm-plan, also beside its peers; not part of the package."""
