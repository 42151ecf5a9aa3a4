"""Strandline: a transactional table store on object storage, for Python and Spark."""

__version__ = "0.1.0"

__all__ = ["__version__"]
