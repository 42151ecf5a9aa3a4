"""The transaction layer used by itself, without a database."""
