"""DuckDB, shut in: what is asked of it, and what is read without it."""
