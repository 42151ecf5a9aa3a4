"""One immutable part: schemas, keys, Parquet files, and the kernels that merge sorted rows."""
