"""The heavy work, on Spark."""
