"""Parts: Parquet objects, written, opened, checked and read."""
