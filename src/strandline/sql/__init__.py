"""Statements over a database."""
